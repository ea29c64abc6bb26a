"""Nested containers of tensors, as batches and outputs of models are: their parts, and copies of them.

Containers are mappings, lists, tuples (named ones too), data classes and the distributions of policies; all else is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

from oomph._older_python import zip


def is_array(value: Any) -> bool:
    """Whether `value` is a tensor, or an array of NumPy's, which is not imported for it."""
    return isinstance(value, torch.Tensor) or (
        type(value).__module__ == "numpy" and hasattr(value, "ndim")
    )


def is_namedtuple(value: Any) -> bool:
    """Whether `value` is a tuple with names of its own, which are fields, never samples."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def is_dataclass(value: Any) -> bool:
    """Whether `value` is an object of a data class."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _parameters(value: Any) -> list[str]:
    """What a distribution was made of, of those that policies return."""
    kind = torch.distributions
    if type(value) is kind.Independent:
        return ["base_dist"]
    if type(value) is kind.Normal:
        return ["loc", "scale"]
    if type(value) in (kind.Categorical, kind.Bernoulli):
        # The other one may have been asked for since.
        return [name for name in ("logits", "probs") if vars(value).get(name) is value._param]
    return []


def children(value: Any) -> Iterator[tuple[str, Any]] | None:
    """The parts of a container with the text that names each, or None for a leaf."""
    if isinstance(value, Mapping):
        return ((f"[{key!r}]", item) for key, item in value.items())
    if is_dataclass(value):
        return ((f".{f.name}", getattr(value, f.name)) for f in dataclasses.fields(value))
    if isinstance(value, (list, tuple)):
        return ((f"[{index}]", item) for index, item in enumerate(value))
    if isinstance(value, torch.distributions.Distribution) and (names := _parameters(value)):
        return ((f".{name}", getattr(value, name)) for name in names)
    return None


def arrays(value: Any) -> Iterator[Any]:
    """All tensors and arrays in `value`."""
    if is_array(value):
        yield value
        return
    for _, child in children(value) or ():
        yield from arrays(child)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in `value`."""
    return (item for item in arrays(value) if isinstance(item, torch.Tensor))


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """`value` with each tensor replaced by `function(tensor)`; containers keep their type."""
    if isinstance(value, torch.Tensor):
        return function(value)
    return rebuild(value, lambda item: map_tensors(function, item))


def rebuild(value: Any, each: Callable[[Any], Any]) -> Any:
    """A container like `value` with `each` of its parts, asked in the order of `children`.

    A leaf is returned as it is. Mappings that cannot be made of a dictionary become one.
    """
    if isinstance(value, MutableMapping) and not isinstance(value, dict):
        items = {key: each(item) for key, item in value.items()}
        result = copy.copy(value)  # BatchEncoding and other UserDicts keep what else they hold
        if isinstance(getattr(value, "data", None), dict):
            result.data = items  # type: ignore[attr-defined]
        else:
            result.update(items)
        return result
    if isinstance(value, Mapping):
        items = {key: each(item) for key, item in value.items()}
        if type(value) is dict:
            return items
        try:
            return type(value)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if is_dataclass(value):
        result = copy.copy(value)
        for field in dataclasses.fields(value):
            # Frozen ones too; and nothing that they do when they are made is done again.
            object.__setattr__(result, field.name, each(getattr(value, field.name)))
        return result
    if is_namedtuple(value):
        return type(value)(*(each(item) for item in value))
    if isinstance(value, (list, tuple)):
        parts = [each(item) for item in value]
        try:
            return type(value)(parts)
        except TypeError:  # a class of its own, which takes something else
            return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, torch.distributions.Distribution) and (names := _parameters(value)):
        kind: Any = type(value)
        given = [each(getattr(value, name)) for name in names]
        if isinstance(value, torch.distributions.Independent):
            return kind(*given, value.reinterpreted_batch_ndims, validate_args=False)
        return kind(**dict(zip(names, given, strict=True)), validate_args=False)
    return value
