"""Where the memory of CUDA tensors begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from oomph._virtual_gpu.device_memory import base_pointer


def cuda_tensors(value: Any) -> Iterator[torch.Tensor]:
    """CUDA tensors in nested arguments, two levels deep: a batch is no deeper."""
    stack = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, torch.Tensor):
            if item.is_cuda:
                yield item
        elif depth < 3 and isinstance(item, (list, tuple)):
            stack += [(x, depth + 1) for x in item]
        elif depth < 3 and isinstance(item, dict):
            stack += [(x, depth + 1) for x in item.values()]


def addresses(value: Any) -> list[int]:
    """Where the memory of the CUDA tensors in `value` begins."""
    found = map(_address, cuda_tensors(value))
    return [address for address in found if address is not None]


def memory_of(t: torch.Tensor) -> list[int]:
    """Where the memory of a CUDA tensor begins; of one that is made of others (8-bit state), of each."""
    if not t.is_cuda:
        return []
    if hasattr(t, "__tensor_flatten__"):
        parts = t.__tensor_flatten__()[0]
        return [address for part in parts for address in memory_of(getattr(t, part))]
    address = _address(t)
    return [] if address is None else [address]


def _address(t: torch.Tensor) -> int | None:
    """Where the memory of a tensor begins; None where it has none: a wrapper, a fake, an empty slice.

    Classes of tensors that compute when they are first looked at must not take this for a look.
    """
    try:
        with torch._C.DisableTorchFunctionSubclass():
            address = base_pointer(t)
    except (RuntimeError, NotImplementedError):
        return None
    # An empty slice begins nowhere, at an offset.
    return address if address > 0 else None
