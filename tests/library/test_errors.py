"""Every form of an out-of-memory error is recognized, and nothing else."""

import subprocess
import sys

import oomph
import pytest
import torch

FORMS = [
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; …)",
    "Caught RuntimeError in replica 0 on device 0.\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "CUDA driver error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "Not enough memory for workspace!",
    "NCCL error in: x.cpp:1, unhandled cuda error\nncclUnhandledCudaError\nCuda failure 'out of memory'",
    "Cuda failure 2 'out of memory'",
    "NCCL error: Failed to CUDA calloc async 608 bytes",
    "Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated : 1 GiB",
]
OTHERS = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("we hope never to see CUDA out of memory again"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ValueError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    MemoryError("out of memory"),
    KeyboardInterrupt(),
    oomph.CannotFit("a single sample does not fit: CUDA out of memory. Tried to allocate 1 GiB"),
    oomph.StateLost("CUDA error: out of memory"),
]


@pytest.mark.parametrize("text", FORMS)
def test_forms(text):
    assert oomph.is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize("error", OTHERS, ids=lambda e: f"{type(e).__name__}: {e}"[:40])
def test_nothing_else(error):
    assert not oomph.is_out_of_memory(error)


def test_pytorchs_own_class_and_its_kin():
    assert oomph.is_out_of_memory(torch.OutOfMemoryError("anything"))
    assert oomph.is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory", 2))
    try:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        except torch.OutOfMemoryError as error:
            raise KeyError("mine") from error
    except KeyError as error:
        assert not oomph.is_out_of_memory(error)


def test_importing_is_light_and_names_are_there():
    code = (
        "import sys, oomph; assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "missing = [n for n in oomph.__all__ if n not in dir(oomph)]; assert not missing, missing\n"
        "[getattr(oomph, n) for n in oomph.__all__]; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        oomph.nonsense  # noqa: B018
