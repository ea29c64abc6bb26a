"""The output of a layer with many outputs, computed lazily."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
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


ELEMENTWISE = frozenset(
    (
        "div",
        "true_divide",
        "divide",
        "__truediv__",
        "mul",
        "multiply",
        "__mul__",
        "__rmul__",
        "add",
        "__add__",
        "__radd__",
        "sub",
        "subtract",
        "__sub__",
        "tanh",
        "neg",
        "negative",
        "__neg__",
        "exp",
        "sigmoid",
        "half",
        "bfloat16",
        "double",
    )
)
"""Functions of each entry alone, whatever numbers they are given beside."""


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
    lever: ClassVar[Any] = None
    """The lever whose rows are lazy in a script that trains."""
    hidden: Any
    """What each row is made from: (…, width); None where that is more than one tensor."""
    classes: int
    """Entries of a row."""
    logits: torch.Tensor | None
    """The rows, once they are made."""

    @classmethod
    def serve(cls, lever: Any) -> None:
        """Rows are lazy for `lever`."""
        LazyRows.lever = lever

    def whole(self) -> torch.Tensor:
        """The rows themselves: (…, classes)."""
        raise NotImplementedError

    def like(self, hidden: torch.Tensor) -> LazyRows:
        """Other rows, made in the same way from `hidden`."""
        raise NotImplementedError

    def origin(self) -> torch.Tensor:
        """One of the tensors that rows are made from."""
        return self.hidden

    def viewed(self, view: Callable[[torch.Tensor], torch.Tensor]) -> LazyRows:
        """The rows of a view of what they are made from."""
        return self.like(view(self.hidden))

    def cast(self, dtype: torch.dtype) -> LazyRows:
        """The same rows in another type."""
        raise NotImplementedError

    def rather(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """`func(self, *args, **kwargs)` without making all rows, or `NotImplemented`."""
        lazy = _lazily(self, func, args, kwargs)
        return NotImplemented if lazy is None else lazy

    @classmethod
    def among(cls, func: Any, args: tuple, kwargs: dict) -> Any:
        """`func(*args, **kwargs)` without making all rows of those among its arguments, or `NotImplemented`."""
        return NotImplemented

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
        result = cls.among(func, args, kwargs)
        if result is not NotImplemented:
            return result
        return func(*whole(args), **{key: whole(value) for key, value in kwargs.items()})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Code bypassed `__torch_function__`: its gradients would be lost."""
        if func is torch.ops.aten.detach.default:
            return whole(args[0]).detach()
        raise cls.lever.refuse(
            f"PyTorch passes its logits to {func} internally, where they cannot be computed lazily"
        )


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
    lazy = isinstance(tensor, LazyRows) and tensor.logits is None
    return tensor.origin().grad_fn if lazy else tensor.grad_fn


def whole(value: Any) -> Any:
    """`value` with the rows of each lazy tensor in it."""
    if isinstance(value, LazyRows):
        return value.whole()
    if type(value) in (list, tuple):
        return type(value)(whole(item) for item in value)
    return value


def _lazily(logits: LazyRows, func: Any, args: tuple, kwargs: dict) -> LazyRows | None:
    """`func(logits, *args, **kwargs)` without computing them, or None."""
    classes, dims = logits.classes, len(logits.shape)
    if func is torch.Tensor.float and not args:
        return logits.cast(torch.float32)
    if func is torch.Tensor.to and not (set(kwargs) - {"dtype", "device", "non_blocking"}):
        wanted = [*args, kwargs.get("dtype"), kwargs.get("device")]
        dtypes = [value for value in wanted if isinstance(value, torch.dtype)]
        others = [v for v in wanted if v is not None and not isinstance(v, (torch.dtype, bool))]
        if all(isinstance(v, (str, torch.device)) and _here(v, logits) for v in others):
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
        rows = logits.shape[:-1].numel()
        known = torch.Size(n for n in lead if n != -1).numel()
        if shape[-1] not in (classes, -1) or not lead or not known:
            return None
        if shape[-1] == -1 and (-1 in lead or known != rows):
            return None
        if rows % known or (-1 not in lead and known != rows):
            return None
        return logits.viewed(lambda t: t.reshape(*lead, t.shape[-1]))
    if func in (torch.Tensor.flatten, torch.flatten):
        given = dict(zip(("start_dim", "end_dim"), args, strict=False)) | kwargs
        start, end = (given.get(k, d) % dims for k, d in (("start_dim", 0), ("end_dim", -1)))
        if end < dims - 1 and start <= end:
            return logits.viewed(lambda t: t.flatten(start, end))
        return None
    if func is torch.Tensor.__getitem__:
        index = args[0] if isinstance(args[0], tuple) else (args[0],)
        if all(i is Ellipsis or isinstance(i, (slice, int)) for i in index):
            spread = list(index)
            if Ellipsis in spread:
                at = spread.index(Ellipsis)
                spread[at : at + 1] = [slice(None)] * (dims - len(spread) + 1)
            if len(spread) < dims or spread[-1] == slice(None):
                left = dims - sum(isinstance(i, int) for i in spread)
                return logits.viewed(lambda t: t[tuple(index)]) if left >= logits.FEWEST else None
        mask = index[0]
        if (
            len(index) == 1
            and type(mask) is torch.Tensor
            and mask.dtype == torch.bool
            and mask.shape == logits.shape[: mask.dim()]
            and 0 < mask.dim() < dims
        ):
            return logits.viewed(lambda t: t[mask])
    return None


def _here(device: Any, tensor: torch.Tensor) -> bool:
    device = torch.device(device)
    return device.type == tensor.device.type and device.index in (None, tensor.device.index)


def is_pair(lazy: LazyRows, index: Any) -> bool:
    """Whether `lazy[index]` takes one entry of each of some rows."""
    return (
        type(index) is tuple
        and len(index) == len(lazy.shape) == 2
        and all(type(i) is torch.Tensor and i.dim() == 1 and i.dtype == torch.int64 for i in index)
        and index[0].shape == index[1].shape
    )
