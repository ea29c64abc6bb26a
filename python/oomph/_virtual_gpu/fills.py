"""Large tensors whose elements are all alike, or alternate: kept as these values, while their memory is not written.

A mask of ones stays known whatever its size, and half of a large comparison is true without a byte for each element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from oomph._older_python import zip
from oomph._virtual_gpu.operators import CONSTANTS, MOVED, REDUCED, Operator, tensors


class Fill(NamedTuple):
    """The values that repeat throughout a storage."""

    values: torch.Tensor
    """(1,) or (2,), on the CPU."""
    known: bool
    """Or chosen by a rule."""

    def count(self, t: torch.Tensor) -> int:
        """How many elements of `t` are not zero, if it is all of its storage."""
        full, rest = divmod(t.numel(), len(self.values))
        true = self.values != 0
        return int(true.sum()) * full + int(true[:rest].sum())

    def spread(self, t: torch.Tensor) -> torch.Tensor:
        """`t` on the CPU: not to be written to."""
        if len(self.values) == 1:
            return self.values[0].expand(t.shape)
        steps = zip(t.shape, t.stride())
        end = t.storage_offset() + sum((n - 1) * step for n, step in steps) + 1
        whole = self.values.repeat((end + 1) // 2)
        return whole.as_strided(t.shape, t.stride(), t.storage_offset())


def repeated(t: torch.Tensor) -> Fill | None:
    """The value of all elements of a tensor of the CPU, None if they differ."""
    few = t[tuple(slice(None, None, max(1, n // 3)) for n in t.shape)]
    first = few.flatten()[:1].clone()
    if bool((few != first).any()):
        return None
    return Fill(first, True) if t.numel() == 1 or all(v == first for v in t.aminmax()) else None


def follow(
    func: Any,
    op: Operator,
    args: tuple,
    kwargs: dict[str, Any],
    outs: list[torch.Tensor],
    fill_of: Callable[[torch.Tensor], Fill | None],
) -> list[Fill] | None:
    """The values that repeat in each result `outs`, None if they do not follow from those of the inputs.

    Raise what `func` raises on the CPU, `ValueError` for sparse and nested tensors. `fill_of` gives what repeats in a tensor, None where nobody knows.
    """
    if op.name in CONSTANTS:
        value = _constant(op, args, kwargs)
        if not isinstance(value, torch.Tensor):
            return [Fill(torch.full((1,), value, dtype=outs[0].dtype), True)]
        fill = fill_of(value)
        return None if fill is None else [Fill(fill.values.to(outs[0].dtype), fill.known)]
    given = op.inputs(args, kwargs)
    if op.repeats == MOVED:
        given = given[: None if op.name == "aten::cat" else 1]
    fills = [fill_of(t) for t in given]
    found = [fill for fill in fills if fill is not None]
    if not found or len(found) < len(fills):
        return None
    known = all(fill.known for fill in found)
    longest = max(given, key=torch.Tensor.numel)
    if any(
        len(f.values) > 1 and not _alike(t, longest, outs, op)
        for f, t in zip(found, given, strict=True)
    ):
        return None
    if op.repeats == MOVED:
        if any(not torch.equal(found[0].values, fill.values) for fill in found):
            return None
        values = [found[0].values.to(outs[0].dtype)]
    else:
        stand_ins = iter(found)

        def stand_in(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                if value.layout is not torch.strided or value.is_nested:
                    raise ValueError("a tensor of several parts")
                short = next(stand_ins).values.clone()
                return short.view((1,) * (value.dim() - 1) + (-1,)) if value.dim() else short[0]
            if isinstance(value, (list, tuple)):
                return type(value)(map(stand_in, value))
            return torch.device("cpu") if isinstance(value, torch.device) else value

        made = func(*map(stand_in, args), **{name: stand_in(v) for name, v in kwargs.items()})
        values = [t.reshape(-1) for t in tensors(made, [])]
        if op.name in ("aten::sum", "aten::count_nonzero"):
            times = longest.numel() // max(1, outs[0].numel()) / len(found[0].values)
            values = [(v.double() * times).to(v.dtype) for v in values]
    if len(values) != len(outs):
        return None
    return [Fill(v, known) for v in values]


def _alike(t: torch.Tensor, longest: torch.Tensor, outs: list[torch.Tensor], op: Operator) -> bool:
    """Whether what alternates in `t` alternates in the results, too."""
    if op.repeats == REDUCED:
        return all(out.numel() == 1 for out in outs) and t.numel() % 2 == 0
    return all(
        t.shape == other.shape and t.stride() == other.stride() and t.storage_offset() == 0
        for other in (longest, *outs)
    )


def _constant(op: Operator, args: tuple, kwargs: dict[str, Any]) -> Any:
    """What an operator of `CONSTANTS` fills memory with."""
    if "zero" in op.name or "ones" in op.name:
        return int("ones" in op.name)
    named = kwargs.get("fill_value", kwargs.get("value"))
    return args[2 if op.name == "aten::new_full" else 1] if named is None else named
