"""What a kernel's local memory (stack, spilled registers) takes of the device: `python bench/gpu/local_memory.py OUT.jsonl`.

Each row is a process that launches kernels with stacks of so many bytes, in this order, and says what the device had left after each. It needs CuPy.
"""

import json
import subprocess
import sys
from datetime import datetime, timezone

SOURCE = """
extern "C" __global__ void __launch_bounds__(%d) local_%d(int *out, int at) {
    %s
    volatile int here[%d];
    for (int i = 0; i < %d; i++) here[i] = i * at;
    out[threadIdx.x] = here[at] + here[(at * 7 + threadIdx.x) %% %d];
}
"""
SHARED = "__shared__ int wide[12000]; wide[threadIdx.x] = at; __syncthreads(); at = wide[0];"
# Bytes of stack in turn; blocks; threads a block at most; whether a block takes nearly all of an SM's shared memory; whether PyTorch,
# whose kernels have an `assert`, has launched one before.
ROWS = [
    (
        [64, 512, 960, 1024, 1100, 1536, 2048, 4096, 10_000, 4096, 16_384, 40_000, 64],
        1,
        256,
        False,
        False,
    ),  # fmt: skip
    ([10_000], 1, 32, False, False),
    ([10_000], 4096, 1024, False, False),
    ([10_000], 4096, 256, True, False),
    ([10_392], 4096, 256, False, False),
    ([2048, 2048], 8, 128, False, False),
    ([64, 1104, 1536, 2048, 4096, 10_000], 1, 256, False, True),
]


def launch(sizes, blocks, threads, shared, after_torch):
    import cupy

    if after_torch:
        import torch

        torch.zeros(1, device="cuda").add_(1).item()

    runtime = cupy.cuda.runtime
    out = cupy.zeros(1024, dtype=cupy.int32)
    free = [runtime.memGetInfo()[0]]
    stacks = []
    for size in sizes:
        words = size // 4
        code = SOURCE % (threads, size, SHARED if shared else "", words, words, words)
        kernel = cupy.RawKernel(code, f"local_{size}")
        kernel.compile()
        free.append(runtime.memGetInfo()[0])
        kernel((blocks,), (min(threads, 256),), (out, 3))
        runtime.deviceSynchronize()
        free.append(runtime.memGetInfo()[0])
        stacks.append(kernel.local_size_bytes)
    facts = runtime.getDeviceProperties(0)
    print(
        json.dumps(
            {
                "sizes": sizes, "blocks": blocks, "threads": threads, "shared": shared, "after_torch": after_torch, "local_size_bytes": stacks, "free": free,
                "taken": [a - b for a, b in zip(free, free[1:])],
                "device": facts["name"].decode(), "sms": facts["multiProcessorCount"],
                "threads_per_sm": facts["maxThreadsPerMultiProcessor"], "stack_limit": runtime.deviceGetLimit(0),
            }
        )
    )  # fmt: skip


def main():
    if len(sys.argv) > 2:
        return launch(*json.loads(sys.argv[2]))
    with open(sys.argv[1], "w", buffering=1) as out:
        about = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        print(json.dumps({"about": about | {"command": " ".join(["python", "bench/gpu/local_memory.py", *sys.argv[1:]])}}), file=out)  # fmt: skip
        for row in ROWS:
            done = subprocess.run([sys.executable, __file__, "-", json.dumps(row)], capture_output=True, text=True)  # fmt: skip
            print(done.stdout.strip() or json.dumps({"failed": done.stderr[-400:]}), file=out)


if __name__ == "__main__":
    main()
