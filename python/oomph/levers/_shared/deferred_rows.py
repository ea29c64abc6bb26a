"""The output of a layer with many outputs, computed lazily."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from oomph import _torch_features as torch_features
from oomph._older_python import zip

METADATA = frozenset(
    getattr(torch.Tensor, name).__get__
    for name in (
        "shape",
        "dtype",
        "device",
        "ndim",
        "is_cuda",
        "is_cpu",
        "requires_grad",
        "layout",
        "is_leaf",
        "is_sparse",
        "is_quantized",
        "is_meta",
        "is_nested",
        *(("names",) if torch_features.has("tensor_names") else ()),
    )
) | {
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.nelement,
    torch.Tensor.ndimension,
    torch.Tensor.is_floating_point,
    torch.Tensor.is_complex,
    torch.Tensor.get_device,
    torch.Tensor.__len__,
    torch.Tensor.is_contiguous,
    torch.is_floating_point,
    torch.numel,
}


class LazyRows(torch.Tensor):
    """Wide rows that are not computed yet; only their inputs exist.

    Views that keep the last dimension whole, and casts, are lazy too; anything else computes the rows.
    """

    BATCHES: ClassVar[float] = 1.0
    """As many rows as a layer makes now it makes of the whole batch."""
    GRAPH_TASK: ClassVar[int] = -1
    """The backward pass in which rows may be lazy, as a part of a batch is computed in it with its loss."""
    AS_BEFORE: ClassVar[bool] = False
    """Whether another part of the batch, or the same again, runs, in which rows are lazy that were."""
    FEWEST: ClassVar[int] = 2
    """Dimensions below which a view is made at once."""
    hidden: torch.Tensor
    """What each row is made from: (…, width)."""
    classes: int
    """Entries of a row."""
    logits: torch.Tensor | None
    """The rows, once they are made."""

    def whole(self) -> torch.Tensor:
        """The rows themselves: (…, classes)."""
        raise NotImplementedError

    def like(self, hidden: torch.Tensor) -> LazyRows:
        """Other rows, made in the same way from `hidden`."""
        raise NotImplementedError

    def cast(self, dtype: torch.dtype) -> LazyRows:
        """The same rows in another type."""
        raise NotImplementedError

    def rather(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """`func(self, *args, **kwargs)` without making all rows, or `NotImplemented`."""
        lazy = _lazily(self, func, args, kwargs)
        return NotImplemented if lazy is None else lazy

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Stay lazy, or compute."""
        kwargs = kwargs or {}
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        first = args[0] if args else None
        if isinstance(first, LazyRows) and first.logits is None:
            result = first.rather(func, args[1:], kwargs)
            if result is not NotImplemented:
                return result
        return func(*whole(args), **{key: whole(value) for key, value in kwargs.items()})


@contextlib.contextmanager
def lazy_for_the_whole_batch(batches: float, as_before: bool) -> Iterator[None]:
    """While one of `batches` parts of a batch runs: what is lazy for the batch is lazy for it.

    With `as_before`, what the script did with rows in the meantime changes nothing.
    """
    before = LazyRows.BATCHES, LazyRows.GRAPH_TASK, LazyRows.AS_BEFORE
    LazyRows.BATCHES, LazyRows.GRAPH_TASK = batches, torch._C._current_graph_task_id()
    LazyRows.AS_BEFORE = as_before
    try:
        yield
    finally:
        LazyRows.BATCHES, LazyRows.GRAPH_TASK, LazyRows.AS_BEFORE = before


def node(tensor: torch.Tensor) -> Any:
    """The node that made a tensor, or None. Asking lazy rows would make them: theirs is the node of what they are made from."""
    if isinstance(tensor, LazyRows) and tensor.logits is None and tensor.hidden.grad_fn is not None:
        return tensor.hidden.grad_fn
    return tensor.grad_fn


def whole(value: Any) -> Any:
    """`value` with the rows of each lazy tensor in it."""
    if isinstance(value, LazyRows):
        return value.whole()
    if type(value) in (list, tuple):
        return type(value)(whole(item) for item in value)
    return value


def _lazily(logits: LazyRows, func: Any, args: tuple, kwargs: dict) -> LazyRows | None:
    """`func(logits, *args, **kwargs)` without computing them, or None."""
    hidden, classes = logits.hidden, logits.classes
    width = hidden.shape[-1]
    if func is torch.Tensor.float and not args:
        return logits.cast(torch.float32)
    if func is torch.Tensor.to and not (set(kwargs) - {"dtype", "device", "non_blocking"}):
        wanted = [*args, kwargs.get("dtype"), kwargs.get("device")]
        dtypes = [value for value in wanted if isinstance(value, torch.dtype)]
        others = [v for v in wanted if v is not None and not isinstance(v, (torch.dtype, bool))]
        if all(isinstance(v, (str, torch.device)) and _here(v, hidden) for v in others):
            return logits.cast(dtypes[0] if dtypes else logits.dtype)
        return None
    if func is torch.Tensor.contiguous:
        return logits
    if func in (torch.Tensor.view, torch.Tensor.reshape, torch.reshape) and not kwargs:
        shape = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
        if (
            isinstance(shape, torch.dtype)
            or not shape
            or not all(isinstance(n, int) for n in shape)
        ):
            return None
        lead = tuple(shape[:-1])
        rows = hidden.numel() // width
        known = torch.Size(n for n in lead if n != -1).numel()
        if shape[-1] not in (classes, -1) or not lead or not known:
            return None
        if shape[-1] == -1 and (-1 in lead or known != rows):
            return None
        if rows % known or (-1 not in lead and known != rows):
            return None
        return logits.like(hidden.reshape(*lead, width))
    if func in (torch.Tensor.flatten, torch.flatten):
        given = dict(zip(("start_dim", "end_dim"), args, strict=False)) | kwargs
        start, end = (
            given.get(k, d) % hidden.dim() for k, d in (("start_dim", 0), ("end_dim", -1))
        )
        if end < hidden.dim() - 1 and start <= end:
            return logits.like(hidden.flatten(start, end))
        return None
    if func is torch.Tensor.__getitem__:
        index = args[0] if isinstance(args[0], tuple) else (args[0],)
        if all(i is Ellipsis or isinstance(i, (slice, int)) for i in index):
            dims = hidden.dim()
            spread = list(index)
            if Ellipsis in spread:
                at = spread.index(Ellipsis)
                spread[at : at + 1] = [slice(None)] * (dims - len(spread) + 1)
            if len(spread) < dims or spread[-1] == slice(None):
                picked = hidden[tuple(index)]
                return logits.like(picked) if picked.dim() >= logits.FEWEST else None
    return None


def _here(device: Any, tensor: torch.Tensor) -> bool:
    device = torch.device(device)
    return device.type == tensor.device.type and device.index in (None, tensor.device.index)
