"""What is small enough to be computed on the CPU."""

from __future__ import annotations

import torch

from oomph._virtual_gpu.operators import PRODUCTS, Operator

FLOAT_LIMIT = 1 << 18
"""Elements of the largest floating tensor that is computed: what programs decide by is small."""

WIDE_LIMIT = 1 << 22
"""Elements of the largest floating tensor that is computed where it follows from known values only:
boxes, anchors, time tables. It is never filled or drawn, so that weights cost no memory."""

PRODUCT_LIMIT = 1 << 28
"""Multiplications of the largest matrix product or convolution that is computed: some 10 ms of a
CPU. Programs do not decide by what is longer, and it would take longer than the whole run."""

INTEGRAL_BYTES = 64 << 20
"""Bytes of the largest integral tensor that is computed: a mask of 8192 x 8192 booleans."""


def computable(t: torch.Tensor) -> bool:
    """Whether a tensor is small enough to be computed."""
    if t.is_floating_point() or t.is_complex():
        return t.numel() <= FLOAT_LIMIT
    return t.numel() * t.element_size() <= INTEGRAL_BYTES


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
