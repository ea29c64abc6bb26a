"""What a virtual GPU compiles must not reach a real one."""

import pytest


def test_kernels_that_the_virtual_gpu_compiled_are_not_kept(oomph, started, tmp_path):
    """PyTorch compiles operators of complex numbers as they are used, and keeps them in files for the next process."""
    (tmp_path / "cache").mkdir()
    run = oomph(
        """
        import torch
        x = torch.ones(64, dtype=torch.complex64, device="cuda")
        print("sum", torch.exp(x).abs().shape)
        """,
        env=dict(XDG_CACHE_HOME=str(tmp_path / "cache")),
    )
    assert "sum" in run.out, run.err
    assert not list(tmp_path.glob("cache/torch/kernels/*"))


@pytest.mark.usefixtures("frameworks")
def test_kernels_of_cupy_are_not_kept(oomph, tmp_path):
    run = oomph(
        """
        import cupy as cp
        print("sum", cp.RawKernel("extern \\"C\\" __global__ void f() {}", "f")((1,), (1,), ()))
        """,
        env=dict(HOME=str(tmp_path / "home")),
    )
    assert "sum" in run.out, run.err
    assert not list(tmp_path.glob("home/.cupy/kernel_cache/*"))
