"""Eight CuPy jobs: `python bench/cupy/jobs.py OUT.jsonl` runs each in a process of its own and writes what its pool and the device took, in bytes."""

import json
import platform
import subprocess
import sys
from datetime import datetime, timezone


def products():
    import cupy as cp

    a = cp.random.rand(8192, 8192, dtype=cp.float32)
    for _ in range(4):
        a = a @ a * 1e-4
    return a


def elementwise():
    import cupy as cp

    x = cp.linspace(0, 1, 100_000_000)
    return (cp.sin(x) ** 2 + cp.cos(x) ** 2 - 1).sum()


def fused():
    import cupy as cp

    @cp.fuse()
    def gelu(x):
        return 0.5 * x * (1 + cp.tanh(0.79788456 * (x + 0.044715 * x**3)))

    x = cp.ones((4096, 16384), dtype=cp.float32)
    for _ in range(4):
        x = gelu(x)
    return x


def transforms():
    import cupy as cp

    x = cp.random.rand(64, 1024, 1024).astype(cp.complex64)
    return cp.fft.ifftn(cp.fft.fftn(x, axes=(1, 2)) * 2, axes=(1, 2))


def sorting():
    import cupy as cp

    x = cp.random.randint(0, 1 << 30, 50_000_000)
    return cp.unique(x), cp.argsort(x)


def raw_kernel():
    import cupy as cp

    add = cp.RawKernel(
        'extern "C" __global__ void add(const float* a, float* b, int n) {'
        " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) b[i] += a[i]; }", "add"
    )  # fmt: skip
    a, b = cp.ones(1 << 26, dtype=cp.float32), cp.zeros(1 << 26, dtype=cp.float32)
    for _ in range(4):
        add(((1 << 26) // 256,), (256,), (a, b, 1 << 26))
    return b


def sparse():
    import cupy as cp
    import cupyx.scipy.sparse as sp

    rows = cp.random.randint(0, 1_000_000, 20_000_000)
    m = sp.coo_matrix(
        (cp.ones(20_000_000, dtype=cp.float32), (rows, rows[::-1])), shape=(1_000_000,) * 2
    ).tocsr()
    return m @ cp.ones((1_000_000, 16), dtype=cp.float32)


def blocks_given_back():
    import cupy as cp

    for n in range(1, 9):
        x = cp.zeros(n << 25, dtype=cp.float32)
        del x
        if n % 4 == 0:
            cp.get_default_memory_pool().free_all_blocks()
    return cp.zeros(1000)


JOBS = {
    job.__name__: job
    for job in (
        products,
        elementwise,
        fused,
        transforms,
        sorting,
        raw_kernel,
        sparse,
        blocks_given_back,
    )
}


def one(name):
    import cupy as cp

    kept = JOBS[name]()
    cp.cuda.Device().synchronize()
    pool = cp.get_default_memory_pool()
    free, total = cp.cuda.runtime.memGetInfo()
    print(json.dumps({
        "job": name, "used": pool.used_bytes(), "pool": pool.total_bytes(), "device_used": total - free,
        "device_total": total, "cupy": cp.__version__, "kept": type(kept).__name__,
    }))  # fmt: skip


def main(out, script=__file__):
    about = {"python": platform.python_version(), "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
             "command": " ".join(["python", "bench/cupy/jobs.py", *sys.argv[1:]])}  # fmt: skip
    with open(out, "w", buffering=1) as file:
        print(json.dumps({"about": about}), file=file)
        for name in JOBS:
            done = subprocess.run(
                [sys.executable, script, "--job", name],
                capture_output=True,
                text=True,
                timeout=120,
            )
            line = done.stdout.strip().splitlines()
            print(
                line[-1] if line else json.dumps({"job": name, "end": done.stderr[-400:]}),
                file=file,
            )


if __name__ == "__main__":
    one(sys.argv[2]) if sys.argv[1] == "--job" else main(sys.argv[1])
