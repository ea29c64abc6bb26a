"""What is small enough to be computed on the CPU."""

from __future__ import annotations

import os

import torch

from oomph._virtual_gpu.operators import PRODUCTS, Operator

FLOAT_LIMIT = 1 << 18
"""The largest floating-point tensor to compute, in elements: programs branch on small ones."""

WIDE_LIMIT = 1 << 22
"""The largest floating-point tensor to compute if it depends only on known values, in elements:
boxes, anchors, time tables. Never for fills and random draws, so that weights cost no memory."""

PRODUCT_LIMIT = 1 << 28
"""The largest matrix product or convolution to compute, in multiplications: some 10 ms of a
CPU. Programs do not branch on larger ones, which would take longer than the whole run."""

INTEGRAL_BYTES = 64 << 20
"""The largest integral tensor to compute, in bytes: a mask of 8192 x 8192 booleans."""


LONG = 1 << 20
"""A tensor of more integers than this takes its time, and the memory of its pages."""

FOLLOWED_LIMIT = 1 << 30
"""So many integers, of tensors that long, are computed from values that nobody knows and a rule chose: some seconds of a CPU. Masks
are computed all the same, as sizes depend on them."""


def small(t: torch.Tensor) -> bool:
    """Whether a tensor is so small that it is always computed."""
    if t.is_floating_point() or t.is_complex():
        return t.numel() <= FLOAT_LIMIT
    return t.numel() * t.element_size() <= INTEGRAL_BYTES


class Budget:
    """The host memory that computed values may take, for programs that want all of them.

    What counts is how much the process has grown: device memory takes what was written to it, until it is freed.
    """

    def __init__(self, limit: int) -> None:
        """`limit` in bytes."""
        self.limit = limit
        self._before = _resident()

    def has(self, size: int) -> bool:
        """Whether there is room for `size` bytes more."""
        return _resident() - self._before + size <= self.limit


def _resident() -> int:
    """The process's own memory, in bytes; what it shares with others (libraries, `fork`) apart."""
    with open("/proc/self/statm") as file:
        _, resident, shared, *_ = map(int, file.read().split())
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def multiplications(op: Operator, args: tuple, outs: list[torch.Tensor]) -> int:
    """How many numbers an operator multiplies, if it is a product."""
    position = PRODUCTS.get(op.name)
    if position is None:
        return 0
    if "convolution" in op.name:
        backward = op.name == "aten::convolution_backward"
        of, each = args[0] if backward else outs[0], args[position][:1].numel()
        return of.numel() * each * (2 if backward else 1)
    return outs[0].numel() * args[position].shape[-2]
