"""Cuts the arguments of a model's call along their samples, and joins the outputs of the parts."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from oomph._containers import arrays, children, is_array, is_namedtuple, rebuild
from oomph._older_python import zip
from oomph.levers._shared.deferred_rows import LazyRows, whole
from oomph.levers._shared.splitting import CannotSplit

PLAIN = (
    type(None),
    str,
    bytes,
    int,
    float,
    complex,
    slice,
    range,
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Generator,
    torch.nn.Module,
)
"""Arguments that hold no samples."""


def leaves(value: Any) -> Iterator[Any]:
    """What is in the containers of `value`, in order; `value` itself if it is none."""
    parts = children(value)
    if parts is None:
        yield value
    else:
        for _, part in parts:
            yield from leaves(part)


def results(output: Any) -> list[Any]:
    """The leaves of a model's output; what lazy rows are made from stands for them."""
    return [leaf.hidden if _is_lazy(leaf) else whole(leaf) for leaf in leaves(output)]


def like_results(output: Any, values: list[Any]) -> Any:
    """Containers like those of `output` with other `results`, from which lazy rows are then made."""
    pairs = zip(leaves(output), values, strict=True)
    made = (leaf.like(value) if _is_lazy(leaf) else value for leaf, value in pairs)
    return with_leaves(output, made)


def lazy_places(output: Any) -> list[bool]:
    """Which leaves are lazy rows."""
    return [_is_lazy(leaf) for leaf in leaves(output)]


def _is_lazy(leaf: Any) -> bool:
    return isinstance(leaf, LazyRows) and leaf.logits is None and leaf.hidden is not None


def with_leaves(value: Any, found: Iterator[Any]) -> Any:
    """Containers like those of `value` with other leaves, in the order of `leaves`."""
    if children(value) is None:
        return next(found)
    return rebuild(value, lambda part: with_leaves(part, found))


class Samples(NamedTuple):
    """Where the samples of a call's arguments are."""

    size: int
    """How many."""
    dim: int
    """Their dimension: 0, or 1 in tensors that have it, as of sequences and states of recurrent networks."""

    def dim_of(self, array: Any) -> int | None:
        """The dimension of an array that they are; None if it holds for all of them."""
        dim = min(self.dim, array.ndim - 1)
        return dim if array.ndim and array.shape[dim] == self.size != 1 else None


def samples(args: tuple, kwargs: dict) -> list[Samples]:
    """Where a call's samples may be: the first dimension of its tensors, or else the second.

    Raises `CannotSplit` if they have neither, or differ. A first dimension of 1 holds for all samples, and
    so does a square mask whose sides are the second dimension of the samples.
    """
    found = [array for array in arrays((args, kwargs)) if array.ndim]
    second = {array.shape[min(1, array.ndim - 1)] for array in found}
    # The second dimension of a matrix is its features, unless it holds tokens.
    matrices = any(array.ndim == 2 and _is_floating(array) for array in found)
    is_second = len(second) == 1 and not matrices and len({array.shape[0] for array in found}) > 1
    second_dim = [Samples(second.pop(), 1)] if is_second else []
    try:
        return [Samples(_samples_first(args, kwargs), 0), *second_dim]
    except CannotSplit:
        if second_dim and all(map(_is_plain, leaves((args, kwargs)))):
            return second_dim
        raise


def _is_floating(array: Any) -> bool:
    return array.is_floating_point() if isinstance(array, torch.Tensor) else array.dtype.kind == "f"


def _is_plain(value: Any) -> bool:
    """An array, or what holds none."""
    return is_array(value) or isinstance(value, PLAIN)


def _samples_first(args: tuple, kwargs: dict) -> int:
    named = [*enumerate(args, 1), *kwargs.items()]
    found = [(name, array) for name, value in named for array in arrays(value) if array.ndim]
    if not found:
        raise CannotSplit("its arguments hold no tensor with a dimension of samples")
    size = next((array.shape[0] for _, array in found if array.shape[0] != 1), 1)
    of_samples = [array for _, array in found if array.shape[0] == size]
    for name, array in found:
        first = array.shape[0]
        square = array.ndim == 2 and array.shape[1] == first
        is_mask = square and any(a.ndim > 1 and a.shape[1] == first for a in of_samples)
        if first in (1, size) or is_mask:
            continue
        argument = f"argument {name}" if isinstance(name, int) else name
        raise CannotSplit(
            f"its arguments differ in their first dimension ({size}, and {first} of {argument}), so it is "
            "not the samples"
        )
    for value in leaves((args, kwargs)):
        if not is_array(value) and not isinstance(value, PLAIN) and not callable(value):
            held = getattr(value, "__dict__", None)
            if held is None or any(is_array(part) for part in held.values()):
                raise CannotSplit(f"an argument is a {type(value).__name__}, which cannot be cut")
    return int(size)


def cut(value: Any, where: Samples, begin: int, end: int) -> Any:
    """The samples from `begin` to `end` in a call's argument. Tensors are views, or copies where samples are the second
    dimension: cuDNN wants them without gaps."""
    if is_array(value):
        dim = where.dim_of(value)
        if dim is None:
            return value
        if dim == 0:
            return value[begin:end]
        part = value[:, begin:end]
        return part.contiguous() if isinstance(part, torch.Tensor) else part
    size = where.size
    plain = isinstance(value, (list, tuple)) and not is_namedtuple(value)
    if plain and len(value) == size and not any(array.ndim for array in arrays(value)):
        return value[begin:end]  # of names, numbers or the like
    if children(value) is not None:
        return rebuild(value, lambda part: cut(part, where, begin, end))
    return value


@dataclass(frozen=True)
class Output:
    """What becomes of one leaf of a model's output."""

    kind: str
    """`samples`: joined; `loss`: one value, weighed; `parameter`: made of parameters alone, of the first
    part; `same`: the first part's; `left out`: None."""
    dim: int = 0
    """The dimension of samples."""
    rows: int = 1
    """Entries in that dimension for each sample."""
    differentiable: bool = False
    """Whether gradients come back for it."""


class Joined:
    """The output of a whole batch, filled part by part."""

    def __init__(self, outputs: list[Output], size: int) -> None:
        """`outputs`: one for each leaf; `size`: samples of the batch."""
        self.outputs, self.size = outputs, size
        self.values: list[Any] = [None] * len(outputs)

    def add(self, output: Any, begin: int, end: int) -> None:
        """A part's output, of the samples from `begin` to `end`; losses are left to the caller."""
        found = results(output)
        if len(found) != len(self.outputs):
            raise CannotSplit("the outputs of its parts differ in what they hold")
        for number, (one, value) in enumerate(zip(self.outputs, found, strict=True)):
            if one.kind == "samples":
                self._fill(number, one, value.detach(), begin, end)
            elif begin == 0 and one.kind in ("parameter", "same"):
                detached = isinstance(value, torch.Tensor) and not value.is_leaf
                self.values[number] = value.detach() if detached else value

    def _fill(self, number: int, one: Output, value: Any, begin: int, end: int) -> None:
        whole = self.values[number]
        if whole is None:
            whole = self.values[number] = empty_like(value, one.dim, self.size * one.rows)
        place = whole.narrow(one.dim, begin * one.rows, (end - begin) * one.rows)
        if place.shape != value.shape:
            raise CannotSplit(
                f"an output has the shape {list(value.shape)} for a part of {end - begin} samples, and "
                f"{list(whole.shape)} for all {self.size} would follow from the first part's"
            )
        place.copy_(value)


def empty_like(part: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """For the whole of which `part` is one, in the same order of dimensions."""
    shape = [*part.shape]
    shape[dim] = size
    strides = sorted(range(part.dim()), key=lambda d: (part.stride(d), -d))
    dense = torch.empty(0, dtype=part.dtype, device=part.device)
    steps, step = [0] * part.dim(), 1
    for d in strides:
        steps[d] = step
        step *= max(1, shape[d])
    return dense.new_empty_strided(shape, steps)


def describe(
    one: Any,
    other: Any,
    sizes: tuple[int, int],
    dim: int,
    only_parameters: Callable[[torch.Tensor], bool],
) -> list[Output]:
    """What the leaves of an output are, from outputs for `sizes` of samples; the first one has a graph.

    `dim` is that of the samples in the arguments: where it is the second one, an output that joins it with the first is
    not made of the parts' one after the other. `only_parameters` tells whether a tensor was made of parameters alone. Raises `CannotSplit`.
    """
    first, second = results(one), results(other)
    if [type(value) for value in first] != [type(value) for value in second]:
        raise CannotSplit("the outputs of its parts differ in what they hold")
    found = [_describe(a, b, sizes, only_parameters) for a, b in zip(first, second, strict=True)]
    if dim and any(one.rows != 1 for one in found):
        raise CannotSplit(
            "its samples are the second dimension of its arguments, and an output joins them with the first"
        )
    return found


def _describe(a: Any, b: Any, sizes: tuple[int, int], only_parameters: Any) -> Output:
    if not isinstance(a, torch.Tensor):
        if hasattr(a, "get_seq_length"):
            return Output("left out")
        if isinstance(a, (type(None), str, bytes, bool, int, float, torch.dtype, torch.device)):
            if a == b:
                return Output("same")
            raise CannotSplit(f"an output is a number of the batch ({a!r}), not a tensor")
        raise CannotSplit(f"an output is a {type(a).__name__}, whose parts cannot be joined")
    if a.dim() != b.dim():
        raise CannotSplit("an output's number of dimensions depends on the number of samples")
    varying = [d for d in range(a.dim()) if a.shape[d] != b.shape[d]]
    if len(varying) > 1:
        raise CannotSplit(
            f"an output compares the samples of a batch with each other ({list(a.shape)} for {sizes[0]} samples)"
        )
    if varying:
        dim = varying[0]
        rows, rest = divmod(a.shape[dim], sizes[0])
        if rest or b.shape[dim] != rows * sizes[1]:
            raise CannotSplit(
                f"the size of an output does not follow the number of samples ({list(a.shape)} for {sizes[0]}, "
                f"{list(b.shape)} for {sizes[1]})"
            )
        return Output("samples", dim, rows, a.requires_grad)
    if a.requires_grad and only_parameters(a):
        return Output("parameter", differentiable=not a.is_leaf)
    if a.requires_grad and a.numel() == 1:
        return Output("loss", differentiable=True)
    if not a.requires_grad and torch.equal(a, b):
        return Output("same")
    raise CannotSplit(
        f"an output has no dimension of samples ({list(a.shape)} for any number of them)"
    )
