"""Splits a batch along its samples: any nesting of tensors, lists, tuples and mappings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oomph._containers import arrays, children, is_array, is_namedtuple, rebuild


class CannotSplit(ValueError):
    """The batch has no recognizable sample dimension; the message says what was found."""


@dataclass(frozen=True)
class SampleLayout:
    """Where the samples of a batch are."""

    kind: str
    """`tensors`: along the first dimension of all tensors; `elements`: a list of samples; `columns`:
    a sequence of sequences, as `tuple(zip(*samples))` gives."""

    def total(self, batch: Any) -> int:
        """How many samples `batch` has."""
        if self.kind == "elements":
            return len(batch)
        if self.kind == "columns":
            return len(batch[0])
        sizes = _first_dimensions(batch)
        if len(sizes) != 1:
            raise _differing(sizes, batch)
        return sizes.pop()

    def split(self, batch: Any, parts: int) -> list[tuple[Any, int]]:
        """`batch` in at most `parts` pieces of nearly equal size, the larger first, each with its
        number of samples. Tensors are views."""
        total = self.total(batch)
        parts = max(1, min(parts, total))
        pieces, begin = [], 0
        for index in range(parts):
            size = total // parts + (index < total % parts)
            end = begin + size
            if self.kind == "elements":
                piece = batch[begin:end]
            elif self.kind == "columns":
                columns = [column[begin:end] for column in batch]
                piece = columns if isinstance(batch, list) else tuple(columns)
            else:
                piece = _slice(batch, total, begin, end)
            pieces.append((piece, size))
            begin = end
        return pieces


def sample_layout(batch: Any, expected: int | None = None) -> SampleLayout:
    """Where the samples of a DataLoader's first batch are.

    `expected` is how many it must have, if that is known. Raises `CannotSplit` if no layout agrees.
    """
    sizes = _first_dimensions(batch)
    candidates: list[SampleLayout] = []
    if len(sizes) == 1:
        candidates.append(SampleLayout("tensors"))
    if isinstance(batch, (list, tuple)) and not is_namedtuple(batch) and batch:
        nested = all(isinstance(column, (list, tuple)) for column in batch)
        if nested and len({len(column) for column in batch}) == 1 and batch[0]:
            candidates.append(SampleLayout("columns"))
        if isinstance(batch, list):
            candidates.append(SampleLayout("elements"))
    for candidate in candidates:
        if candidate.total(batch) > 0 and expected in (None, candidate.total(batch)):
            return candidate
    if len(sizes) == 1:
        raise CannotSplit(
            f"the first dimension of the DataLoader's tensors is {sizes.pop()}, but its batch size is "
            f"{expected}: the first dimension is not the samples"
        )
    raise _differing(sizes, batch)


def _differing(sizes: set[int], batch: Any) -> CannotSplit:
    if not sizes:
        return CannotSplit(
            f"the DataLoader yields {_describe(batch)}, which holds no tensors to split"
        )
    return CannotSplit(
        f"the tensors that the DataLoader yields differ in their first dimension ({', '.join(map(str, sorted(sizes)))}), "
        "so it is not the samples"
    )


def _slice(value: Any, total: int, begin: int, end: int) -> Any:
    if is_array(value):
        return value[begin:end] if value.ndim and value.shape[0] == total else value
    plain = isinstance(value, (list, tuple)) and not is_namedtuple(value)
    # A column of samples, unless it holds columns itself.
    if plain and len(value) == total and _first_dimensions(value) != {total}:
        return value[begin:end]
    if children(value) is not None:
        return rebuild(value, lambda item: _slice(item, total, begin, end))
    if value is None or isinstance(value, (str, bytes, int, float, bool)):
        return value
    raise CannotSplit(
        f"the DataLoader yields a {type(value).__module__}.{type(value).__qualname__}, which cannot be split"
    )


def _first_dimensions(value: Any) -> set[int]:
    """Of all tensors inside."""
    return {array.shape[0] for array in arrays(value) if array.ndim}


def _describe(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
