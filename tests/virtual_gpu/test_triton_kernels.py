"""Triton's kernels on the virtual GPU: compiled as on a GPU, and launched without a C compiler for each signature."""

LAUNCHED = """
import torch, triton, triton.language as tl
from triton.runtime.errors import OutOfResources

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

from oomph._virtual_gpu.library import busy
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


def test_kernels_are_checked_and_launched_without_a_launcher_in_c(oomph, tmp_path):
    run = oomph(LAUNCHED, env={"TRITON_CACHE_DIR": str(tmp_path / "triton")})
    assert run.status == 0, run.err
    assert "launches 2" in run.out and "hooked ['fill']" in run.out, run.out
    assert "on the CPU: Pointer argument (at 0) cannot be accessed from Triton" in run.out
    assert "too much: out of resource: shared memory" in run.out
    built = {path.name.split(".")[0] for path in (tmp_path / "triton").rglob("*.so")}
    assert built == {"cuda_utils"}
