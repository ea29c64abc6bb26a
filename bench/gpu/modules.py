"""What the driver charges for loaded code: `python modules.py OUT.jsonl [SECONDS]`.

Each row is a process: after every step, what is used of the GPU less what the process's own allocator holds (bytes). All
processes import their packages first, side by side, and then use the GPU one after the other, so that a row shows one process alone.
Steps that fail say so. ONNX models are exported, which needs `onnx`, unless `models/` has them. `limits` are the driver's sizes of stack, printf buffer and heap, before and after.
"""

import ctypes
import json
import os
import subprocess
import sys
import time

ROUNDS = 3
"""Processes for each row of `REPEATED`."""

TORCH = "import torch\nreserved = lambda: torch.cuda.memory_reserved()\nx = None"
CUPY = "import cupy as cp\nimport cupyx.scipy.sparse\nreserved = lambda: cp.get_default_memory_pool().total_bytes()"
JAX = "import os\nos.environ['XLA_PYTHON_CLIENT_ALLOCATOR'] = 'platform'\nimport jax, jax.numpy as jnp\nreserved = lambda: 0"
ORT = """import io, os, numpy as np, torch, onnxruntime as ort
reserved = lambda: 0
assert 'CUDAExecutionProvider' in ort.get_available_providers(), ort.get_available_providers()
shape = (256, 256)
class Conv(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.conv2d(x.view(8, 8, 32, 32), torch.ones(64, 8, 3, 3))
models = {}
for name, module in dict(add=torch.nn.LeakyReLU(0.1), matmul=torch.nn.Linear(256, 256, bias=False), softmax=torch.nn.Softmax(1), conv=Conv()).items():
    file = io.BytesIO()
    ready = f'models/{name}.onnx'
    if os.path.exists(ready):
        models[name] = open(ready, 'rb').read()
        continue
    torch.onnx.export(module.eval(), (torch.zeros(shape),), file, dynamo=False, input_names=['x'], output_names=['y'])
    models[name] = file.getvalue()
def session(name):
    provider = {'arena_extend_strategy': 'kSameAsRequested'}
    return ort.InferenceSession(models[name], providers=[('CUDAExecutionProvider', provider)])
run = lambda s: s.run(None, {'x': np.zeros(shape, 'f4')})"""

KERNELS = r"""
extern "C" __global__ void plain(float* x) { x[threadIdx.x] = 1; }
"""
PRINTF = r"""
extern "C" __global__ void plain(float* x) { if (x[0] > 1e30f) printf("%f\n", x[0]); }
"""
MALLOC = r"""
extern "C" __global__ void plain(float* x) { if (x[0] > 1e30f) { float* p = (float*)malloc(64); *(float**)x = p; } }
"""
ASSERT = r"""
extern "C" __global__ void plain(float* x) { assert(x[0] < 1e30f); }
"""
LOCAL = r"""
extern "C" __global__ void plain(float* x, int n) {
  volatile float a[%d]; for (int i = 0; i < n; ++i) a[i] = x[i]; for (int i = 0; i < n; ++i) x[i] = a[n - i - 1];
}
"""
VARIABLE = r"""
__device__ float big[%d];
extern "C" __global__ void plain(float* x) { big[threadIdx.x] = x[0]; }
"""
CONSTANT = r"""
__constant__ float big[16000];
extern "C" __global__ void plain(float* x) { x[0] = big[threadIdx.x]; }
"""
MANAGED = r"""
__managed__ float big[1000];
extern "C" __global__ void plain(float* x) { x[0] = big[threadIdx.x]; }
"""


def many(count, length):
    """`count` kernels of `length` operations each, for code of some size."""
    body = lambda k: "".join(f"y = sinf(y) * {k}.5f + x[{i}];" for i in range(length))
    return "\n".join(
        f'extern "C" __global__ void k{k}(float* x) {{ float y = x[0]; {body(k)} x[1] = y; }}'
        for k in range(count)
    )


def compiled(code, launch="(x,)", name="plain"):
    """Steps that load `code` and launch a kernel of it."""
    return CUPY, [
        "cp.cuda.runtime.memGetInfo()",
        "x = cp.cuda.alloc(1 << 20)",
        f"m = cp.RawModule(code={code!r}); m.compile()",
        f"f = m.get_function({name!r})",
        f"f((1,), (32,), {launch}); cp.cuda.Device().synchronize()",
        "note('local bytes', f.attributes['local_size_bytes'])",
    ]


torch_first = lambda first, *then: (
    TORCH, ["torch.cuda.mem_get_info()", "x = torch.empty(1 << 20, device='cuda')", first, *then]
)  # fmt: skip
MIXED = (
    "x + 1", "x.softmax(0)", "x.sort()", "x[x.long()]", "x.cumsum(0)", "torch.randn(8, device='cuda')", "x.view(1024, 1024).sum(1)",
    "x.view(1024, 1024) @ x.view(1024, 1024)", "x.view(1024, 1024).bfloat16() @ x.view(1024, 1024).bfloat16()",
    "torch.nn.functional.conv2d(x.view(16, 64, 32, 32), torch.ones(64, 64, 3, 3, device='cuda'))", "torch.fft.rfft(x)",
    "torch.linalg.svd(x[:10000].view(100, 100))", "torch.linalg.inv(x[:10000].view(100, 100) + torch.eye(100, device='cuda'))",
    "x.view(1024, 1024).to_sparse() @ x.view(1024, 1024)", "torch.cuda.Stream().synchronize()",
)  # fmt: skip
cupy_first = lambda *first: (CUPY, ["cp.cuda.runtime.memGetInfo()", "x = cp.cuda.alloc(1)", *first])
REPEATED = {
    "torch_fill": torch_first("x.fill_(1)", *MIXED),
    "torch_mixed": torch_first(*MIXED[1:], "x.fill_(1)"),
    "cupy_mixed": cupy_first(
        "a = cp.ones((512, 512), dtype='f')", "a + 1", "a.sum()", "a @ a", "cp.random.rand(8)", "cp.sort(a)", "cp.fft.fft(a)",
        "cp.linalg.svd(a)", "cp.linalg.inv(a + cp.eye(512, dtype='f'))", "cupyx.scipy.sparse.csr_matrix(cp.eye(512)) @ cp.ones(512)",
        "cp.argsort(a)", "cp.unique(a)",
    ),
    "ort_mixed": (ORT, [step for name in ("add", "matmul", "softmax", "conv") for step in (f"s = session({name!r})", "run(s)", "run(s)")]),
}  # fmt: skip
ONCE = {
    "plain": compiled(KERNELS), "printf": compiled(PRINTF), "malloc": compiled(MALLOC), "assert": compiled(ASSERT),
    "local_256": compiled(LOCAL % 64, "(x, 64)"), "local_2k": compiled(LOCAL % 512, "(x, 512)"),
    "local_16k": compiled(LOCAL % 4096, "(x, 4096)"),
    "variable_1m": compiled(VARIABLE % (1 << 18)), "variable_100m": compiled(VARIABLE % (25 << 20)), "constant": compiled(CONSTANT),
    "managed": compiled(MANAGED), "code_small": compiled(many(20, 40), name="k0"), "code_large": compiled(many(100, 200), name="k0"),
    "torch_add": torch_first("x + 1"), "torch_sort": torch_first("x.sort()"), "torch_randn": torch_first("x.normal_()"),
    "torch_softmax": torch_first("x.view(1024, 1024).softmax(1)"), "torch_index": torch_first("x[torch.empty(8, dtype=torch.long, device='cuda')]"),
    "torch_matmul": torch_first("x.view(1024, 1024) @ x.view(1024, 1024)", "x.fill_(1)"),
    "torch_conv": torch_first(MIXED[9].replace("ones", "empty"), "x.fill_(1)"),
    "torch_fft": torch_first("torch.fft.rfft(x)", "x.fill_(1)"),
    "cupy_matmul": cupy_first("a = cp.empty((512, 512), dtype='f')", "a @ a"), "cupy_fft": cupy_first("a = cp.empty((512, 512), dtype='F')", "cp.fft.fft(a)"),
    "cupy_svd": cupy_first("a = cp.empty((512, 512), dtype='f')", "cp.linalg.svd(a)"), "cupy_sort": cupy_first("a = cp.empty((512, 512), dtype='f')", "a.sort()"),
    "cupy_random": cupy_first("cp.random.rand(8)"), "cupy_sum": cupy_first("a = cp.empty((512, 512), dtype='f')", "a.sum()"),
    "cupy_sparse": cupy_first("a = cupyx.scipy.sparse.csr_matrix((512, 512))", "a @ cp.empty(512)"),
    "jax": (JAX, ["x = jnp.ones((512, 512))", "x + 1", "(x @ x).block_until_ready()", "jnp.fft.fft(x).block_until_ready()", "jnp.linalg.svd(x)[1].block_until_ready()",
                  "jax.random.normal(jax.random.key(0), (8,)).block_until_ready()"]),
    "ort_add": (ORT, REPEATED["ort_mixed"][1][:3]), "ort_matmul": (ORT, REPEATED["ort_mixed"][1][3:6]), "ort_conv": (ORT, REPEATED["ort_mixed"][1][9:]),
    "ort_with_torch": (ORT, [*REPEATED["ort_mixed"][1][:6], "x = torch.zeros(8, device='cuda')", "x + 1"]),
    "torch_eager": (TORCH, ["torch.cuda.mem_get_info()", "x = torch.empty(1 << 20, device='cuda')", "x.fill_(1)"]),
}  # fmt: skip
PREPARED = {"torch_eager": {"CUDA_MODULE_LOADING": "EAGER"}}


def find(name):
    imports, steps = {**REPEATED, **ONCE}[name]
    return imports, steps


def limits(driver):
    found = {}
    for key, code in (("stack", 0), ("printf", 1), ("heap", 2)):
        size = ctypes.c_size_t()
        status = driver.cuCtxGetLimit(ctypes.byref(size), code)
        found[key] = size.value if status == 0 else f"status {status}"
    return found


def child(name):
    imports, steps = find(name)
    scope, row, notes = {}, dict(name=name, steps=[]), {}
    try:
        exec(imports, scope)
    except BaseException as error:
        row["error"] = f"{type(error).__name__}: {error}"[:300]
    print("ready", flush=True)
    if sys.stdin.readline().strip() != "go" or "error" in row:
        print(json.dumps(row), flush=True)
        return
    driver = ctypes.CDLL("libcuda.so.1")
    scope["note"] = notes.__setitem__

    def used():
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value - scope["reserved"]()

    for step in steps:
        began = time.perf_counter()
        try:
            exec(step, scope)
            driver.cuCtxSynchronize()
            failed = None
        except BaseException as error:
            failed = f"{type(error).__name__}: {error}"[:200]
        entry = dict(
            step=step if len(step) < 200 else step[:60] + "…",
            used=used(),
            s=round(time.perf_counter() - began, 2),
        )
        if failed:
            entry["error"] = failed
        row["steps"].append(entry)
        if len(row["steps"]) == 1:
            row["limits"] = [limits(driver)]
    row["limits"].append(limits(driver))
    print(json.dumps(row | notes), flush=True)


def main():
    out, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 95.0
    began = time.monotonic()
    names = [*REPEATED, *ONCE, *[name for name in REPEATED for _ in range(ROUNDS - 1)]]
    waiting, at_once = [], max(2, (os.cpu_count() or 4) + 4)
    start = lambda name: (name, subprocess.Popen(
        [sys.executable, __file__, "--child", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=os.environ | PREPARED.get(name, {}),
    ))  # fmt: skip
    left = names[::-1]
    with open(out, "w", buffering=1) as file:
        packages = "import importlib.metadata as m\nfor p in ('torch', 'cupy-cuda13x', 'jax', 'onnxruntime', 'onnxruntime-gpu'):\n try: print(p, m.version(p))\n except Exception: pass"
        versions = subprocess.run(
            [sys.executable, "-c", packages], capture_output=True, text=True
        ).stdout.split("\n")
        gpu = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.used", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip() if not os.environ.get("OOMPH_VGPU") else "virtual"  # fmt: skip
        file.write(
            json.dumps(
                dict(
                    gpu=gpu,
                    versions=versions,
                    date=time.strftime("%Y-%m-%d"),
                    command=" ".join(sys.argv),
                )
            )
            + "\n"
        )
        while left or waiting:
            while left and len(waiting) < at_once:
                waiting.append(start(left.pop()))
            name, process = waiting.pop(0)
            if time.monotonic() - began > seconds:
                process.kill()
                file.write(json.dumps(dict(name=name, left_out=True)) + "\n")
                continue
            try:
                if process.stdout.readline().strip() == "ready":
                    text, _ = process.communicate("go\n", timeout=40)
                    line = text.strip().splitlines()
                    file.write(
                        (line[-1] if line else json.dumps(dict(name=name, ended=process.wait())))
                        + "\n"
                    )
                else:
                    file.write(json.dumps(dict(name=name, ended=process.wait())) + "\n")
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                file.write(json.dumps(dict(name=name, slow=True)) + "\n")


if __name__ == "__main__":
    child(sys.argv[2]) if sys.argv[1] == "--child" else main()
