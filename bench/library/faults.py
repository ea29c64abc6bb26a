"""Allocations that fail on demand: on the CPU by a dispatch mode, on the virtual GPU by its library."""

from __future__ import annotations

import ctypes

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def allocates(func) -> bool:
    """Whether an operator returns a tensor that is no part of its arguments."""
    if func.namespace == "c10d":
        return False  # collectives here work in place, whatever their schemas say
    return any(r.alias_info is None and "Tensor" in str(r.type) for r in func._schema.returns)


class Faults(TorchDispatchMode):
    """Counts operators that allocate; raises out of memory at those numbered in `at` (from 1).

    `wanted(elements)` lets only large enough results fail, for simulated capacities.
    """

    def __init__(self, at=()):
        super().__init__()
        self.at, self.count, self.raised = set(at), 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if allocates(func):
            self.count += 1
            if self.count in self.at:
                self.raised.append(str(func))
                raise torch.OutOfMemoryError(
                    "CUDA out of memory. Tried to allocate 2.00 MiB. (simulated)"
                )
        return func(*args, **(kwargs or {}))


def fail_cuda(first: int, count: int = 1) -> None:
    """On the virtual GPU: let `first - 1` more allocations pass and the next `count` fail."""
    ctypes.PyDLL(None).oomph_vgpu_fail(0, ctypes.c_uint64(first), ctypes.c_uint64(count))


def cuda_requests() -> int:
    """Requests that the virtual GPU has had for memory."""
    library = ctypes.PyDLL(None)
    library.oomph_vgpu_requests.restype = ctypes.c_uint64
    return library.oomph_vgpu_requests(0)
