"""A batch as micro-batches: any nesting of tensors, lists, tuples and mappings along its samples."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch


class CannotSplit(ValueError):
    """The batch has no dimension of samples that could be told; the message says what was found."""


def samples(batch: Any, expected: int | None = None) -> int:
    """How many samples `batch` holds.

    `expected` is the DataLoader's batch size, if it has one; the last batch may have fewer. Samples
    are the first dimension of all tensors, the elements of all lists, or, where tensors are ragged,
    the elements of the outer lists. Raises `CannotSplit` if they do not agree.
    """
    if isinstance(batch, (list, tuple)) and not _is_named(batch):
        columns = {len(c) for c in batch if isinstance(c, (list, tuple))}
        # `tuple(zip(*samples))`, as detection models collate: as many of each.
        if (
            batch
            and len(columns) == 1
            and all(isinstance(c, (list, tuple)) for c in batch)
            and _plausible(next(iter(columns)), expected)
            and not _tensor_sizes(batch) <= columns
        ):
            return columns.pop()
    sizes = _tensor_sizes(batch)
    if len(sizes) == 1 and _plausible(next(iter(sizes)), expected):
        return sizes.pop()
    if isinstance(batch, list) and _plausible(len(batch), expected) and len(batch) > 1:
        return len(batch)  # samples as they are, not stacked
    if not sizes:
        raise CannotSplit(
            f"the DataLoader yields {_describe(batch)}, which holds no tensors to split"
        )
    found = ", ".join(str(size) for size in sorted(sizes))
    if len(sizes) == 1:
        raise CannotSplit(
            f"the first dimension of the DataLoader's tensors is {found}, but its batch size is {expected}: "
            "the samples do not lie along the first dimension"
        )
    raise CannotSplit(
        f"the tensors that the DataLoader yields differ in their first dimension ({found}), so that it is "
        "not that of the samples"
    )


def split(batch: Any, total: int, parts: int) -> list[tuple[Any, int]]:
    """`batch` of `total` samples in at most `parts` pieces of nearly equal size, the larger first,
    each with its number of samples. Tensors are views."""
    parts = max(1, min(parts, total))
    pieces, begin = [], 0
    for index in range(parts):
        size = total // parts + (index < total % parts)
        pieces.append((_slice(batch, total, begin, begin + size), size))
        begin += size
    return pieces


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
            return type(value)(pieces)
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


def _plausible(size: int, expected: int | None) -> bool:
    return size > 0 and (expected is None or size <= expected)


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "ndim")


def _describe(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
