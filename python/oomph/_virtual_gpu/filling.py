"""Contents of results that follow from values nobody computed: stated, and as even as can be."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch

from oomph._older_python import zip
from oomph._user_code import user_line
from oomph._virtual_gpu import lbfgs
from oomph._virtual_gpu.device_memory import base_pointer, cpu_alias
from oomph._virtual_gpu.fills import Fill
from oomph._virtual_gpu.library import library
from oomph._virtual_gpu.limits import FLOAT_LIMIT, small
from oomph._virtual_gpu.operators import COMPARISON, PERMUTATION, ROUND_ROBIN, Operator

NEAR_ZERO = 1e-4
"""Numbers that programs compare with to see whether another one is zero but for rounding."""

WAITS = 100
"""How often in a row a line finds an unknown number above such a one. Then a loop that waits for convergence ends."""


class Filling:
    """Fills what nobody computed; comparisons by the rule `unknown`, one of `RULES`."""

    def __init__(self, unknown: str) -> None:
        """With no loop waiting."""
        self._unknown = unknown
        self._waited: Counter[str] = Counter()

    def fill(
        self, func, op: Operator, args: tuple, kwargs: dict, outs: list[torch.Tensor]
    ) -> tuple[str | None, list[tuple[torch.Tensor, Fill]]]:
        """Fill uncomputed results with defined contents instead of stale bytes.

        Returns by which rule integers and booleans were chosen, where there is more to say than `unknown`,
        and what repeats in large results, which are not written.
        """
        why = None
        unwritten = []
        for t in outs:
            if not t.is_cuda or t.numel() == 0 or t.is_quantized or not small(t):
                continue
            if t.is_floating_point() or t.is_complex():
                _zero(t)
                continue
            if t.numel() > FLOAT_LIMIT and t.dtype == torch.bool and op.fill == COMPARISON:
                values = torch.empty(2, dtype=torch.bool)
                why = self._fill_comparison(values, op, args)
                unwritten.append((t, Fill(values, False)))
                continue
            alias = cpu_alias(t)
            if op.fill in (ROUND_ROBIN, PERMUTATION) and t.dtype == torch.int64:
                why = _fill_indices(alias, op, given_by_name(func, args, kwargs))
            elif t.dtype == torch.bool and op.fill == COMPARISON:
                why = self._fill_comparison(alias, op, args)
            elif op.mutated and not op.overwrites:
                continue  # keeps what was known before
            else:
                _zero(t)
        return why, unwritten

    def _fill_comparison(self, alias: torch.Tensor, op: Operator, args: tuple) -> str | None:
        name = op.name.rsplit("::")[-1].rstrip("_")
        other = args[1] if len(args) > 1 else None
        same = other is not None and args[0] is other
        above, below = name in ("gt", "ge"), name in ("lt", "le")
        # Unknown floats are assumed to be finite: x == x holds, and nothing equals infinity.
        if name in ("isnan", "isinf") or (same and name in ("ne", "lt", "gt")):
            alias.fill_(False)
        elif same:
            alias.fill_(True)
        elif name in ("eq", "ne"):
            alias.fill_(name == "ne")
        elif (above or below) and isinstance(other, float) and math.isinf(other):
            alias.fill_(above == (other < 0))
        elif name in ("ge", "le") and _parts_of_one(args):
            # Corners of one tensor of boxes, neighbours of one series: checks that programs make.
            alias.fill_(True)
        elif alias.numel() == 1 and (above or below) and lbfgs.asks():
            alias.fill_(lbfgs.compare(name, other))
            return lbfgs.ASSUMED
        elif self._unknown != "half":
            alias.fill_(self._unknown == "all")
        elif alias.numel() > 1:
            every = torch.arange(alias.numel()) % 2 == 0
            alias.copy_(every.view(alias.shape))
        elif (above or below) and isinstance(other, (int, float)) and 0 < abs(other) <= NEAR_ZERO:
            return self._fill_near_zero(alias, above, other)
        else:
            alias.fill_(False)
            return "the comparison was taken as false"
        return None

    def _fill_near_zero(self, alias: torch.Tensor, above: bool, other: Any) -> str:
        """One unknown number and one near zero: the unknown one is not as near, on the same side."""
        if above == (other < 0):
            alias.fill_(False)
        else:
            line = user_line()
            self._waited[line] += 1
            alias.fill_(self._waited[line] % (WAITS + 1) != 0)
        return f"it was taken as {'above' if other > 0 else 'below'} {other:g}"


def zero(outs: list[torch.Tensor]) -> None:
    """Zeros in tensors of the GPU that are small enough for a program to read them."""
    for t in outs:
        if t.numel() and not t.is_quantized and small(t):
            _zero(t)


def _zero(t: torch.Tensor) -> None:
    """Not by PyTorch, which would wake all of the CPU's threads for what takes some 50 µs. Whole pages are not touched."""
    if t.is_contiguous():
        library().oomph_vgpu_clear(t.data_ptr(), t.nbytes)
    else:
        cpu_alias(t).zero_()


def _parts_of_one(args: tuple) -> bool:
    """Whether two tensors are views of the same memory."""
    if len(args) < 2 or not all(isinstance(t, torch.Tensor) for t in args[:2]):
        return False
    a, b = args[:2]
    return a.is_cuda and b.is_cuda and base_pointer(a) == base_pointer(b)


def given_by_name(func, args: tuple, kwargs: dict) -> dict[str, Any]:
    """What an operator was given, by the names of its arguments."""
    names = (argument.name for argument in func._schema.arguments)
    return dict(zip(names, args, strict=False)) | kwargs


def sized_by_rule(func, op, args: tuple, kwargs: dict, share: float):
    """On the CPU, what `func` gives if it keeps a `share` of what it is given."""
    given, source = given_by_name(func, args, kwargs), args[0]
    if op.name == "torchvision::nms":
        return spread(source.shape[:1], int(source.shape[0] * share))[:, 0]
    if op.name == "aten::bincount":
        return torch.zeros(max(1, given.get("minlength", 0)), dtype=torch.int64)
    dim = given.get("dim")
    if dim is None:
        total, inverse = source.numel(), source.shape
        shape = torch.Size([int(total * share)])
    else:
        total, inverse = source.shape[dim], torch.Size([source.shape[dim]])
        shape = torch.Size(
            [int(n * share) if at == dim % source.dim() else n for at, n in enumerate(source.shape)]
        )
    # As evenly as possible: everything kept appears equally often.
    kept = max(1, int(total * share))
    counted, numbered = given.get("return_counts"), given.get("return_inverse")
    return (
        torch.zeros(shape, dtype=source.dtype),
        (torch.arange(total) % kept).view(inverse)
        if numbered
        else torch.zeros(0, dtype=torch.int64),
        torch.full((int(total * share),), total // kept)
        if counted
        else torch.zeros(0, dtype=torch.int64),
    )


def spread(shape: torch.Size, count: int) -> torch.Tensor:
    """`count` positions spread evenly over a tensor of `shape`: (count, dimensions)."""
    total = max(1, torch.Size(shape).numel())
    flat = torch.arange(count) * total // max(1, count)
    return torch.stack(torch.unravel_index(flat, shape), 1) if len(shape) else flat[:, None][:, :0]


def _fill_indices(alias: torch.Tensor, op: Operator, given: dict[str, Any]) -> str:
    """Indices distributed evenly: of choices, row i gets i*k, i*k+1, … modulo their number; of orders, i, i+1, …"""
    source, dim = given.get("self"), given.get("dim", -1)
    if not isinstance(source, torch.Tensor) or dim is None or alias.dim() == 0:
        choices = source.numel() if isinstance(source, torch.Tensor) else alias.numel()
        alias.copy_(torch.arange(alias.numel()).view(alias.shape))
    else:
        choices = max(1, source.shape[dim])
        kept = alias.dim() == source.dim()
        rows = alias.movedim(dim, -1) if kept else alias[..., None]
        wide = rows.shape[-1]
        step = 1 if op.fill == PERMUTATION else wide
        first = torch.arange(rows.numel() // max(1, wide))[:, None] * step
        rows.copy_(((first + torch.arange(wide)) % choices).view(rows.shape))
    return f"each of {choices} choices is taken equally often"
