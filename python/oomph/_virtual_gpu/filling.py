"""Contents of results that follow from values nobody computed: stated, and as even as can be."""

from __future__ import annotations

import torch

from oomph._virtual_gpu.device_memory import base_pointer, cpu_alias
from oomph._virtual_gpu.limits import computable
from oomph._virtual_gpu.operators import COMPARISON, OVERWRITES, PERMUTATION, ROUND_ROBIN, Operator

RULES = {"half": 0.5, "all": 1.0, "none": 0.0}
"""How many elements of an unknown comparison are assumed to be true."""


def fill(op: Operator, args: tuple, outs: list[torch.Tensor], unknown: str) -> None:
    """Fill uncomputed results with defined contents instead of stale bytes."""
    for t in outs:
        if not t.is_cuda or t.numel() == 0 or not computable(t):
            continue
        alias = cpu_alias(t)
        if t.is_floating_point() or t.is_complex():
            alias.zero_()
        elif op.fill == ROUND_ROBIN and t.dtype == torch.int64:
            _fill_round_robin(alias, op, args)
        elif op.fill == PERMUTATION and t.dtype == torch.int64:
            dim = args[1] if len(args) > 1 and isinstance(args[1], int) else -1
            if alias.dim():
                order = torch.arange(alias.shape[dim])
                alias.copy_(
                    order.view([-1 if d == dim % alias.dim() else 1 for d in range(alias.dim())])
                )
            else:
                alias.zero_()
        elif t.dtype == torch.bool and op.fill == COMPARISON:
            _fill_comparison(alias, op, args, unknown)
        elif op.mutated and op.name not in OVERWRITES:
            continue  # keeps what was known before
        else:
            alias.zero_()


def _fill_comparison(alias: torch.Tensor, op: Operator, args: tuple, unknown: str) -> None:
    name = op.name.rsplit("::")[-1].rstrip("_")
    same = len(args) > 1 and args[0] is args[1]
    # Unknown floats are assumed to be finite: x == x holds, and nothing equals infinity.
    if name in ("isnan", "isinf") or (same and name in ("ne", "lt", "gt")):
        alias.fill_(False)
    elif same:
        alias.fill_(True)
    elif name in ("eq", "ne"):
        alias.fill_(name == "ne")
    elif name in ("ge", "le") and _parts_of_one(args):
        # Corners of one tensor of boxes, neighbours of one series: checks that programs make.
        alias.fill_(True)
    elif unknown == "half":
        if alias.numel() == 1:
            alias.fill_(False)
        else:
            every = torch.arange(alias.numel()) % 2 == 0
            alias.copy_(every.view(alias.shape))
    else:
        alias.fill_(unknown == "all")


def _parts_of_one(args: tuple) -> bool:
    """Whether two tensors are views of the same memory."""
    if len(args) < 2 or not all(isinstance(t, torch.Tensor) for t in args[:2]):
        return False
    a, b = args[:2]
    return a.is_cuda and b.is_cuda and base_pointer(a) == base_pointer(b)


def sized_by_rule(func, op, args: tuple, kwargs: dict, share: float):
    """On the CPU, what `func` gives if it keeps a `share` of what it is given."""
    given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | kwargs
    source = args[0]
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


def _fill_round_robin(alias: torch.Tensor, op: Operator, args: tuple) -> None:
    """Indices distributed evenly: row i gets i*k, i*k+1, … modulo the number of choices."""
    source = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if source is None or source.dim() == 0:
        alias.zero_()
        return
    topk = op.name == "aten::topk"
    position = 2 if topk else 1
    dim = args[position] if len(args) > position and isinstance(args[position], int) else -1
    choices = source.shape[dim]
    alias.copy_((torch.arange(alias.numel()) % max(1, choices)).view(alias.shape))
