"""Triton's kernels on the virtual GPU: compiled as on a GPU, and launched without a C compiler for each signature."""

KERNELS = """
import torch, triton, triton.language as tl
from triton.runtime.errors import OutOfResources
from oomph._virtual_gpu.library import busy

@triton.jit
def fill(out, n, value, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, value, mask=at < n)

@triton.jit
def product(a, b, out, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))

def refused(error, launch):
    try:
        launch()
    except error as why:
        return str(why)
"""

LAUNCHED = (
    KERNELS
    + """
launches = busy()[2]
out = torch.empty(64, device="cuda")
for value in (1, 2.5):
    fill[(1,)](out, 64, value, BLOCK=64)
fill[(0,)](out, 64, 1, BLOCK=64)
print("launches", busy()[2] - launches)
print("on the CPU:", refused(ValueError, lambda: fill[(1,)](out.cpu(), 64, 1, BLOCK=64)))
wide = torch.empty(256, 256, device="cuda", dtype=torch.float16)
print("too much:", refused(OutOfResources, lambda: product[(1,)](wide, wide, wide, N=256)))
calls = []
triton.knobs.runtime.launch_enter_hook = lambda metadata: calls.append(metadata.get()["name"])
fill[(1,)](out, 64, 1, BLOCK=64)
print("hooked", calls)
"""
)


def test_kernels_are_checked_and_launched_without_a_launcher_in_c(oomph, tmp_path):
    run = oomph(LAUNCHED, env={"TRITON_CACHE_DIR": str(tmp_path / "triton")})
    assert run.status == 0, run.err
    assert "launches 2" in run.out and "hooked ['fill']" in run.out, run.out
    assert "on the CPU: Pointer argument (at 0) cannot be accessed from Triton" in run.out
    assert "too much: out of resource: shared memory" in run.out
    built = {path.name.split(".")[0] for path in (tmp_path / "triton").rglob("*.so")}
    assert built == {"cuda_utils"}


COMBINED = """
import torch, triton
from torch._inductor import config, scheduler

config.combo_kernels = config.benchmark_combo_kernel = True
config.compile_threads = 1
compiled, decided = [], []
triton.knobs.compilation.listener = lambda *, src, **about: compiled.append(src.fn.__name__)
decide = scheduler.Scheduler.speedup_by_combo_kernel
scheduler.Scheduler.speedup_by_combo_kernel = lambda *args: decided.append(decide(*args)) or decided[-1]

@torch.compile
def both(a, b):
    return a + 1, b * 2

a, b = torch.empty(1 << 20, device="cuda"), torch.empty(3 << 19, device="cuda")
before = torch.cuda.memory_allocated()
sums = [one.shape for one in both(a, b)]
print("combined", decided, bool(compiled), "triton_" in compiled)
print("inputs", torch.cuda.max_memory_allocated() - before > a.nbytes + b.nbytes)
"""


def test_no_kernel_is_compiled_only_to_see_whether_a_combined_one_is_faster(oomph, tmp_path):
    caches = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    run = oomph(COMBINED, env={name: str(tmp_path / name) for name in caches})
    assert run.status == 0, run.err
    assert "combined [True] True False" in run.out, run.out
    # What it is compared with takes memory while it is compared, as on a GPU.
    assert "inputs True" in run.out, run.out


BESIDE = (
    KERNELS
    + """
import os
from oomph._virtual_gpu.triton_beside import KernelsBeside

os.sched_getaffinity = lambda process: {0, 1}
kernels = KernelsBeside()
out = torch.empty(64, device="cuda")
wide = torch.empty(256, 256, device="cuda", dtype=torch.float16)
grid = lambda given: (triton.cdiv(given["n"], given["BLOCK"]),)
late = []

def launches(call):
    before = busy()[2]
    call()
    return busy()[2] - before

kernels.begin()
first = lambda: [fill[grid](out, 64, value, BLOCK=64) for value in (1, 2.5, 2.5)]
print("launches", launches(first), len(fill.device_caches[0][0]))
print("none", launches(lambda: fill[(0,)](out, 64, 4.5, BLOCK=64)))
print("on the CPU:", refused(ValueError, lambda: fill[grid](out.cpu(), 64, 1, BLOCK=64)))
triton.knobs.runtime.jit_post_compile_hook = lambda **about: late.append(about)
kernels.finish()
print("compiled", len(fill.device_caches[0][0]), launches(first), late)
triton.knobs.runtime.jit_post_compile_hook = None

kernels.begin()
product[(1,)](wide, wide, wide, N=256)
print("too much:", refused(OutOfResources, kernels.finish))
kernels.begin()
tuned = triton.autotune([triton.Config({"N": 256}), triton.Config({"N": 16})], key=[])(product)
tuned[(1,)](wide, wide, wide)
print("tuned", tuned.best_config.kwargs)
kernels.finish()
"""
)


def test_kernels_are_compiled_beside_the_program_that_launches_them(oomph, tmp_path):
    run = oomph(BESIDE, env={"TRITON_CACHE_DIR": str(tmp_path / "triton")})
    assert run.status == 0, run.err
    assert "launches 3 0" in run.out and "none 0" in run.out, run.out
    assert "on the CPU: Pointer argument" in run.out, run.out
    # Both are compiled for whoever starts next, and nobody is told of kernels that are compiled late.
    assert "compiled 2 3 []" in run.out, run.out
    assert "too much: out of resource: shared memory" in run.out, run.out
    assert "tuned {'N': 16}" in run.out, run.out
