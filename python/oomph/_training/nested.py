"""Batches of any nested structure: their number of samples, their size, and parts of them.

A leaf has a batch dimension if its first dimension is the number of samples. There are two kinds of
lists: fields (`[inputs, targets]`, what a DataLoader yields) and samples of different shapes
(`[image, image, …]`); the number of samples that is consistent with all leaves decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from oomph._containers import children, is_array, is_namedtuple, rebuild, tensors
from oomph._older_python import pairwise


class BatchError(TypeError):
    """The structure of a batch could not be understood; the message says where."""


def bounds(size: int, parts: int) -> list[tuple[int, int]]:
    """Where `parts` parts of `size` samples begin and end, as equal as can be.

    The larger ones come first: smaller ones then find room where those were.
    """
    least, more = divmod(size, parts)
    ends = [least * n + min(n, more) for n in range(parts + 1)]
    return list(pairwise(ends))


def _sizes(value: Any, top: bool) -> set[int] | None:
    """Possible numbers of samples of `value`; None if it says nothing about them."""
    if is_array(value):
        if isinstance(value, torch.Tensor) and value.is_nested:
            raise BatchError(
                "nested tensors cannot be cut along the batch; pass a list of tensors instead"
            )
        # One row is shared by all samples, like position ids.
        return None if value.ndim == 0 else {int(value.shape[0])}
    parts = children(value)
    if parts is None:
        return None
    found: set[int] | None = None
    consistent = True
    for _, child in parts:
        sizes = _sizes(child, top=False)
        if sizes is None:
            continue
        if found is None:
            found = set(sizes)
            continue
        common = found & sizes
        if not common and found != {1} and sizes != {1}:
            consistent = False
            break
        found = common or (sizes if found == {1} else found)
    if isinstance(value, list) and (not top or not consistent or found is None):
        # A list may also hold one sample an item.
        found = (found or set()) if consistent else set()
        return found | {len(value)} if value else found
    if not consistent:
        return set()
    return found


def batch_size(batch: Any) -> int:
    """The number of samples in `batch`.

    Raises `BatchError` where the leaves do not agree on one.
    """
    sizes = _sizes(batch, top=True)
    if isinstance(batch, list) and _look_alike(batch):
        raise BatchError(
            f"{_describe(batch)} may be fields or samples of the batch. Put fields into a tuple or "
            "dict, or pass `samples=` and `part=` to say how to split it."
        )
    if not sizes:
        raise BatchError(
            "cannot determine the number of samples: expected tensors with one common first "
            f"dimension, found {_describe(batch)}. Pass `samples=` and `part=` to split it yourself."
        )
    if len(sizes) == 1:
        return next(iter(sizes))
    # A plain tensor is decisive; among lists, the number that all have in common remains.
    certain = {int(t.shape[0]) for t in _top_tensors(batch) if t.ndim} & sizes
    certain = certain - {1} or certain
    if len(certain) == 1:
        return next(iter(certain))
    raise BatchError(
        f"the number of samples may be any of {sorted(sizes)} in {_describe(batch)}. "
        "Pass `samples=` and `part=` to say how to split it."
    )


def _look_alike(items: list[Any]) -> bool:
    """Whether a list of tensors may as well be a list of images as one of fields."""
    first = items[0] if items else None
    if len(items) < 2 or not isinstance(first, torch.Tensor) or not first.is_floating_point():
        return False
    alike = all(isinstance(item, torch.Tensor) and item.shape == first.shape for item in items)
    return alike and first.ndim >= 2 and (first.ndim >= 3 or len(items) > 2)


def _top_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Tensors that are fields: not inside a list below the first level."""
    if is_array(value):
        yield value
        return
    for _, child in children(value) or ():
        if not isinstance(child, list):
            yield from _top_tensors(child)


def part(batch: Any, start: int, stop: int, size: int | None = None) -> Any:
    """Samples `start` to `stop` of `batch`, in the same structure; tensors are views.

    Raises `BatchError` for a leaf that is neither a sample's nor shared.
    """
    return _part(batch, start, stop, batch_size(batch) if size is None else size, "batch", True)


def _part(value: Any, start: int, stop: int, size: int, where: str, top: bool) -> Any:
    if is_array(value):
        if value.ndim == 0 or (value.shape[0] == 1 and size > 1):
            return value
        if value.shape[0] != size:
            raise BatchError(
                f"{where} has first dimension {value.shape[0]}, but the batch has {size} samples. "
                "Keep what is not part of the batch in the loss function, or pass `part=`."
            )
        return value[start:stop]
    if isinstance(value, list) and len(value) == size and (not top or _is_samples(value, size)):
        return value[start:stop]
    plain_tuple = isinstance(value, tuple) and not is_namedtuple(value) and not top
    if plain_tuple and len(value) == size and _is_samples(value, size):
        return value[start:stop]
    if children(value) is None:
        return value
    names = iter([name for name, _ in children(value) or ()])
    return rebuild(value, lambda item: _part(item, start, stop, size, where + next(names), False))


def _is_samples(value: Any, size: int) -> bool:
    """Whether a list of `size` items holds samples: its items do not all have the batch dimension."""
    for item in value:
        sizes = _sizes(item, top=False)
        if sizes is None or size not in sizes:
            return True
    return False


def elements(batch: Any) -> int:
    """Elements of all tensors in `batch`: what its memory grows with."""
    return sum(t.numel() for t in tensors(batch))


def sample_elements(batch: Any, size: int) -> list[int] | None:
    """Elements of each sample, or None where all are alike."""
    each = [0] * size
    ragged = False

    def visit(value: Any, top: bool) -> None:
        nonlocal ragged
        if is_array(value):
            return
        if isinstance(value, list) and len(value) == size and (not top or _is_samples(value, size)):
            counts = [elements(item) for item in value]
            ragged = ragged or len(set(counts)) > 1
            for index, count in enumerate(counts):
                each[index] += count
            return
        for _, child in children(value) or ():
            visit(child, False)

    visit(batch, True)
    if not ragged:
        return None
    shared = (elements(batch) - sum(each)) // max(1, size)
    return [count + shared for count in each]


def _describe(value: Any, depth: int = 0) -> str:
    if is_array(value):
        return f"{type(value).__name__}{tuple(value.shape)}"
    parts = children(value)
    if parts is None:
        return type(value).__name__
    if depth > 1:
        return f"{type(value).__name__}(…)"
    shown = [f"{name} {_describe(child, depth + 1)}" for name, child in parts]
    return f"{type(value).__name__}({', '.join(shown[:6])}{', …' if len(shown) > 6 else ''})"
