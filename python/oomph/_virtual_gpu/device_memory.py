"""The bytes that stand for device memory, as tensors of the CPU."""

from __future__ import annotations

from typing import Any

import torch

from oomph._older_python import zip

_CPU = torch.device("cpu")
_make_storage = torch._C._construct_storage_from_data_pointer
_data_ptr: Any = torch._C.TensorBase.data_ptr
"""PyTorch's own: a tensor's method may be somebody else's (`host_draws.py`)."""


def base_pointer(t: torch.Tensor) -> int:
    """Where the memory of `t` and its views begins.

    Not asked of `untyped_storage()`: the Python object for a storage counts as one more owner, and
    autograd accumulates in place only into memory with a single owner.
    """
    return _data_ptr(t) - int(t.storage_offset()) * t.element_size()


def cpu_alias(t: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the bytes that stand for the device memory of `t`: same shape, strides and sign.

    Raise `RuntimeError` for a quantized one, whose scale no such tensor has.
    """
    if t.is_quantized:
        raise RuntimeError("a quantized tensor")
    shape, strides = t.shape, t.stride()
    if t.numel() == 0:
        return torch.empty_strided(shape, strides, dtype=t.dtype, device=_CPU)
    size = t.nbytes
    if not t.is_contiguous():
        last = sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        size = (last + 1) * t.element_size()
    aliased = _make_storage(t.data_ptr(), _CPU, size)
    alias = torch.empty(0, dtype=t.dtype, device=_CPU).set_(aliased, 0, shape, strides)
    if t.is_conj():
        alias = torch._conj(alias)
    return torch._neg_view(alias) if t.is_neg() else alias
