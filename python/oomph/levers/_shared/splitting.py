"""Splits a batch along its samples: any nesting of tensors, lists, tuples and mappings."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


class CannotSplit(ValueError):
    """The batch has no recognizable sample dimension; the message says what was found."""


@dataclass(frozen=True)
class Layout:
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
        sizes = _tensor_sizes(batch)
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


def layout(batch: Any, expected: int | None = None) -> Layout:
    """Where the samples of a DataLoader's first batch are.

    `expected` is how many it must have, if that is known. Raises `CannotSplit` if no layout agrees.
    """
    sizes = _tensor_sizes(batch)
    candidates: list[Layout] = []
    if len(sizes) == 1:
        candidates.append(Layout("tensors"))
    if isinstance(batch, (list, tuple)) and not _is_named(batch) and batch:
        nested = all(isinstance(column, (list, tuple)) for column in batch)
        if nested and len({len(column) for column in batch}) == 1 and batch[0]:
            candidates.append(Layout("columns"))
        if isinstance(batch, list):
            candidates.append(Layout("elements"))
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
    if isinstance(value, torch.Tensor):
        return value[begin:end] if value.dim() and value.shape[0] == total else value
    if _is_array(value):
        return value[begin:end] if value.ndim and value.shape[0] == total else value
    if isinstance(value, MutableMapping) and not isinstance(value, dict):
        piece = copy.copy(value)  # BatchEncoding and other UserDicts keep what else they hold
        if hasattr(value, "data") and isinstance(value.data, dict):
            piece.data = {k: _slice(v, total, begin, end) for k, v in value.data.items()}
            return piece
        for key in list(value):
            piece[key] = _slice(value[key], total, begin, end)
        return piece
    if isinstance(value, Mapping):
        pieces = {key: _slice(item, total, begin, end) for key, item in value.items()}
        try:
            return type(value)(pieces)  # type: ignore[call-arg]
        except TypeError:
            return pieces
    if _is_named(value):
        return type(value)(*(_slice(item, total, begin, end) for item in value))
    if isinstance(value, (list, tuple)):
        kind = list if isinstance(value, list) else tuple
        # A column of samples, unless it holds columns itself.
        if len(value) == total and _tensor_sizes(value) != {total}:
            return kind(value[begin:end])
        return kind(_slice(item, total, begin, end) for item in value)
    if value is None or isinstance(value, (str, bytes, int, float, bool)):
        return value
    if hasattr(value, "__dataclass_fields__"):
        piece = copy.copy(value)
        for name in value.__dataclass_fields__:
            object.__setattr__(piece, name, _slice(getattr(value, name), total, begin, end))
        return piece
    raise CannotSplit(
        f"the DataLoader yields a {type(value).__module__}.{type(value).__qualname__}, which cannot be split"
    )


def _tensor_sizes(value: Any) -> set[int]:
    """First dimensions of all tensors inside."""
    if isinstance(value, torch.Tensor):
        return {value.shape[0]} if value.dim() else set()
    if _is_array(value):
        return {value.shape[0]} if value.ndim else set()
    if isinstance(value, Mapping):
        items: Any = value.values()
    elif isinstance(value, (list, tuple)):
        items = value
    elif hasattr(value, "__dataclass_fields__"):
        items = [getattr(value, name) for name in value.__dataclass_fields__]
    else:
        return set()
    sizes: set[int] = set()
    for item in items:
        sizes |= _tensor_sizes(item)
    return sizes


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "ndim")


def _describe(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
