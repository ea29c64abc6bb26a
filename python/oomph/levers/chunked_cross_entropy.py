"""Cross-entropy over a large vocabulary, a part of the rows at a time."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch.nn import functional

from oomph.levers.base import Lever
from oomph.levers.job import Job

VOCABULARY = 4096
"""Classes below which logits are small beside what makes them."""

MANY = 1 << 24
"""Logits (rows times classes) below which nothing is done: 64 MiB in fp32."""


class ChunkedCrossEntropy(Lever):
    """The loss over a vocabulary is computed in chunks of rows, and so are its gradients.

    Needs: `cross_entropy` (or `CrossEntropyLoss`, or a Hugging Face loss, which call it) with class
    indices as targets, over 4096 classes or more. Changes: where the logits come from a linear layer
    and go nowhere else, they never exist as a whole; the backward pass computes them again, a chunk
    at a time. Other logits exist, but no copies of them in fp32. Results: the same to rounding.

    Logits that the script uses otherwise (accuracy, a penalty) are computed for it as a whole.
    """

    name = "chunked_cross_entropy"

    def __init__(self, chunks: int) -> None:
        """`chunks`: in how many parts."""
        super().__init__()
        if chunks < 2:
            raise self.refuse(f"chunks is {chunks}; at least 2 are needed")
        self.chunks = chunks
        self.fused = 0
        self.whole = 0
        self.heads: set[int] = set()
        """Addresses of weights whose outputs were a loss's logits."""
        self.others: dict[int, int] = {}
        """How often the outputs of a weight were used otherwise."""

    def install(self, job: Job) -> None:
        """Step in at `linear` and `cross_entropy`."""
        LazyLogits.lever = self
        self.linear, self.cross_entropy = functional.linear, functional.cross_entropy

        @functools.wraps(self.linear)
        def linear(input: Any, weight: Any, bias: Any = None) -> Any:
            if (
                weight.shape[0] >= VOCABULARY
                and not torch.compiler.is_compiling()
                and self._may_wait(input, weight)
            ):
                return LazyLogits(input, weight, bias)
            return self.linear(input, weight, bias)

        @functools.wraps(self.cross_entropy)
        def cross_entropy(
            input: Any,
            target: Any,
            weight: Any = None,
            size_average: Any = None,
            ignore_index: int = -100,
            reduce: Any = None,
            reduction: str = "mean",
            label_smoothing: float = 0.0,
        ) -> Any:
            if size_average is not None or reduce is not None:
                reduction = torch.nn._reduction.legacy_get_string(
                    size_average, reduce, emit_warning=False
                )
            options = dict(
                weight=weight,
                ignore_index=ignore_index,
                reduction=reduction,
                label_smoothing=label_smoothing,
            )
            if self._fits(input, target):
                return self._loss(input, target, options)
            return self.cross_entropy(_whole(input), target, **options)

        functional.linear = linear  # type: ignore[assignment]
        functional.cross_entropy = cross_entropy

    def _may_wait(self, input: Any, weight: Any) -> bool:
        """Whether the output of a linear layer may be the logits of a loss."""
        return (
            type(input) is torch.Tensor
            and type(weight) in (torch.Tensor, torch.nn.Parameter)
            and torch.is_grad_enabled()
            and (input.requires_grad or weight.requires_grad)
            and input.dim() >= 2
            and weight.shape[0] > 2 * weight.shape[1]
            and input.numel() // max(1, input.shape[-1]) * weight.shape[0] >= MANY
            and (self.others.get(weight.data_ptr(), 0) < 2 or weight.data_ptr() in self.heads)
            # A checkpointed part's second forward is not the place of a loss.
            and torch._C._current_graph_task_id() == -1
        )

    def _fits(self, input: Any, target: Any) -> bool:
        return (
            isinstance(input, torch.Tensor)
            and input.dim() == 2
            and input.shape[1] >= VOCABULARY
            and isinstance(target, torch.Tensor)
            and not target.is_floating_point()
            and target.dim() == 1
            and target.shape[0] == input.shape[0]
            and input.numel() >= MANY
            and torch.is_grad_enabled()
            and input.requires_grad
            and not torch.compiler.is_compiling()
        )

    def _loss(self, input: torch.Tensor, target: torch.Tensor, options: dict) -> torch.Tensor:
        self.applied += 1
        # Autocast computes this loss in fp32.
        autocast = torch.is_autocast_enabled(input.device.type)
        dtype = torch.float32 if autocast else input.dtype
        if isinstance(input, LazyLogits) and input.logits is None:
            self.fused += 1
            self.heads.add(input.weight.data_ptr())
            hidden, weight, bias = input.operands()
        else:
            self.whole += 1
            hidden, weight, bias = _whole(input), None, None
        with torch.autocast(input.device.type, enabled=False):
            loss = _ChunkedLoss.apply(
                hidden, weight, bias, target, self.chunks, tuple(options.values())
            )
            return loss.to(dtype)

    def finish(self) -> None:
        """Say where the logits still existed."""
        if not self.applied:
            self.add_note(
                f"no cross-entropy with gradients over {VOCABULARY} classes or more and class indices "
                "as targets"
            )
        elif self.whole:
            self.add_note(
                f"{self.whole} of {self.applied} losses had logits that do not come straight from a "
                "linear layer: they exist as a whole, without copies in fp32"
            )
        if self.heads & self.others.keys():
            self.add_note(
                "the script uses logits for more than the loss: they were computed for it"
            )

    @classmethod
    def by_hand(cls, chunks: int) -> str:
        """Checkpointed chunks."""
        return (
            "from torch.utils.checkpoint import checkpoint\n"
            "def part(h, y):\n"
            "    return F.cross_entropy(model.head(h).float(), y, reduction='sum')\n"
            "hidden, target = hidden.flatten(0, 1), target.flatten()\n"
            "loss = sum(\n"
            "    checkpoint(part, h, y, use_reentrant=False)\n"
            f"    for h, y in zip(hidden.chunk({chunks}), target.chunk({chunks}))\n"
            ") / (target != -100).sum()\n"
        )


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
        "names",
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


class LazyLogits(torch.Tensor):
    """What a linear layer of many outputs gives, until somebody looks.

    Views that keep the last dimension whole, and casts, are lazy too. Anything but these and
    cross-entropy computes the logits.
    """

    lever: Any = None

    @staticmethod
    def __new__(cls, hidden: Any, weight: Any, bias: Any, casts: tuple = ()) -> LazyLogits:
        """`hidden` (…, width), `weight` (classes, width), `bias` (classes) or None; `casts` follow."""
        kind = hidden.device.type
        autocast = torch.is_autocast_enabled(kind) if not casts else False
        dtype = casts[-1] if casts else torch.get_autocast_dtype(kind) if autocast else hidden.dtype
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            (*hidden.shape[:-1], weight.shape[0]),
            dtype=dtype,
            device=hidden.device,
            requires_grad=True,
        )
        return self

    def __init__(self, hidden: Any, weight: Any, bias: Any, casts: tuple = ()) -> None:
        """As `__new__`."""
        self.hidden, self.weight, self.bias, self.casts = hidden, weight, bias, casts
        self.logits: torch.Tensor | None = None
        if not casts:
            # The type to compute in is what autocast says now.
            with torch._C.DisableTorchFunctionSubclass():
                self.casts = (self.dtype,)

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Hidden rows, weight and bias, in the type in which the layer computes."""
        dtype = self.casts[0]
        bias = None if self.bias is None else self.bias.to(dtype)
        return self.hidden.to(dtype), self.weight.to(dtype), bias

    def whole(self) -> torch.Tensor:
        """The logits themselves."""
        if self.logits is None:
            lever = LazyLogits.lever
            pointer = self.weight.data_ptr()
            lever.others[pointer] = lever.others.get(pointer, 0) + 1
            with torch.autocast(self.hidden.device.type, enabled=False):
                logits = lever.linear(*self.operands())
                for dtype in self.casts[1:]:
                    logits = logits.to(dtype)
            self.logits = logits
        return self.logits

    def _like(self, hidden: torch.Tensor, cast: torch.dtype | None = None) -> LazyLogits:
        casts = self.casts if cast is None or cast == self.casts[-1] else (*self.casts, cast)
        return LazyLogits(hidden, self.weight, self.bias, casts)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Stay lazy, or compute."""
        kwargs = kwargs or {}
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        first = args[0] if args else None
        if isinstance(first, LazyLogits) and first.logits is None:
            lazy = _lazily(first, func, args[1:], kwargs)
            if lazy is not None:
                return lazy
        return func(*_whole(args), **{key: _whole(value) for key, value in kwargs.items()})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Something went around `__torch_function__`: its gradients would be lost."""
        if func is torch.ops.aten.detach.default:
            return _whole(args[0]).detach()
        raise cls.lever.refuse(
            f"its logits are given to {func}, from inside PyTorch, where they cannot be computed late"
        )


def _whole(value: Any) -> Any:
    if isinstance(value, LazyLogits):
        return value.whole()
    if type(value) in (list, tuple):
        return type(value)(_whole(item) for item in value)
    return value


def _lazily(logits: LazyLogits, func: Any, args: tuple, kwargs: dict) -> LazyLogits | None:
    """`func(logits, *args, **kwargs)` without computing them, or None."""
    hidden, classes = logits.hidden, logits.weight.shape[0]
    width = hidden.shape[-1]
    if func is torch.Tensor.float and not args:
        return logits._like(hidden, torch.float32)
    if func is torch.Tensor.to and not (set(kwargs) - {"dtype", "device", "non_blocking"}):
        wanted = [*args, kwargs.get("dtype"), kwargs.get("device")]
        dtypes = [value for value in wanted if isinstance(value, torch.dtype)]
        others = [v for v in wanted if v is not None and not isinstance(v, (torch.dtype, bool))]
        if all(isinstance(v, (str, torch.device)) and _here(v, hidden) for v in others):
            return logits._like(hidden, dtypes[0] if dtypes else None)
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
        return logits._like(hidden.reshape(*lead, width))
    if func in (torch.Tensor.flatten, torch.flatten):
        given = dict(zip(("start_dim", "end_dim"), args, strict=False)) | kwargs
        start, end = (
            given.get(k, d) % hidden.dim() for k, d in (("start_dim", 0), ("end_dim", -1))
        )
        if end < hidden.dim() - 1 and start <= end:
            return logits._like(hidden.flatten(start, end))
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
                return logits._like(picked) if picked.dim() >= 2 else None
    return None


def _here(device: Any, tensor: torch.Tensor) -> bool:
    device = torch.device(device)
    return device.type == tensor.device.type and device.index in (None, tensor.device.index)


class _ChunkedLoss(torch.autograd.Function):
    """Cross-entropy of `hidden @ weight.T + bias` (of `hidden` itself without a weight)."""

    @staticmethod
    def forward(ctx: Any, hidden, weight, bias, target, chunks, options):
        classes, ignored, reduction, smoothing = options
        rows = hidden.shape[0]
        kept = target != ignored
        # Rows that do not count keep a class that exists.
        safe = target.masked_fill(~kept, 0)
        factors = kept.float() if classes is None else classes.float()[safe] * kept
        losses = torch.empty(rows, dtype=torch.float32, device=hidden.device)
        normalizers = torch.empty(rows, dtype=torch.float32, device=hidden.device)
        for part in _slices(rows, chunks):
            logits = _logits(hidden[part], weight, bias)
            total = torch.logsumexp(logits, 1)
            normalizers[part] = total
            loss = factors[part] * (total - logits.gather(1, safe[part, None])[:, 0])
            if smoothing:
                if classes is None:
                    smooth = logits.shape[1] * total - logits.sum(1)
                else:
                    smooth = classes.float().sum() * total - logits @ classes.float()
                loss = (1 - smoothing) * loss + smoothing / logits.shape[1] * smooth * kept[part]
            losses[part] = loss
            del logits
        ctx.save_for_backward(hidden, weight, bias, safe, kept, factors, normalizers, classes)
        ctx.chunks, ctx.smoothing, ctx.reduction = chunks, smoothing, reduction
        # How it reduces, for whoever divides batches into parts.
        ctx.loss_reduction = reduction
        if reduction == "none":
            return losses
        if reduction == "sum":
            return losses.sum()
        ctx.count = ctx.loss_count = factors.sum()
        return losses.sum() / ctx.count

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor):
        with _full_reduction():
            return _ChunkedLoss._backward(ctx, grad)

    @staticmethod
    def _backward(ctx: Any, grad: torch.Tensor):
        hidden, weight, bias, safe, kept, factors, normalizers, classes = ctx.saved_tensors
        rows = hidden.shape[0]
        if ctx.reduction == "mean":
            grad = grad / ctx.count
        grad = grad.float().expand(rows)
        smoothing = ctx.smoothing
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        d_hidden = hidden.new_empty(hidden.shape) if needs_hidden else None
        # Sums over chunks are kept in fp32, as a product over all rows is.
        d_weight = (
            torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
            if needs_weight
            else None
        )
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if needs_bias else None
        for part in _slices(rows, ctx.chunks):
            logits = _logits(hidden[part], weight, bias)
            count = logits.shape[1]
            # The softmax, in the logits' own memory.
            d = logits.sub_(normalizers[part, None]).exp_()
            hit = factors[part] * (1 - smoothing)
            if smoothing:
                share = smoothing / count * kept[part]
                if classes is None:
                    d.mul_((hit + share * count)[:, None]).sub_(share[:, None])
                else:
                    every = classes.float()
                    d.mul_((hit + share * every.sum())[:, None])
                    d.addr_(share, every, alpha=-1)
            else:
                d.mul_(hit[:, None])
            d.scatter_add_(1, safe[part, None], -hit[:, None])
            d.mul_(grad[part, None])
            if weight is None:
                d_hidden[part] = d  # type: ignore[index]
                continue
            d = d.to(hidden.dtype)
            del logits
            if d_hidden is not None:
                torch.mm(d, weight, out=d_hidden[part])
            if d_weight is not None:
                if hidden.dtype == torch.float32:
                    d_weight.addmm_(d.t(), hidden[part])
                else:
                    d_weight.add_(d.t() @ hidden[part])
            if d_bias is not None:
                d_bias.add_(d.sum(0, dtype=torch.float32))
            del d
        if d_weight is not None:
            d_weight = d_weight.to(weight.dtype)
        if d_bias is not None:
            d_bias = d_bias.to(bias.dtype)
        return d_hidden, d_weight, d_bias, None, None, None


@contextlib.contextmanager
def _full_reduction():
    """Products of few rows over a whole vocabulary are split along it, and cuBLAS may add the parts in
    the lower precision: measured on an H200, that is four times the rounding of the unsplit product."""
    settings = torch.backends.cuda.matmul
    names = (
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction",
    )
    saved = [getattr(settings, name) for name in names]
    try:
        for name in names:
            setattr(settings, name, False)
        yield
    finally:
        for name, value in zip(names, saved, strict=True):
            setattr(settings, name, value)


def _slices(rows: int, chunks: int) -> list[slice]:
    size = max(1, -(-rows // chunks))
    return [slice(begin, min(begin + size, rows)) for begin in range(0, rows, size)]


def _logits(hidden: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
    """In fp32, and in memory of their own."""
    if weight is None:
        return hidden.to(torch.float32, copy=True)
    return torch._C._nn.linear(hidden, weight, bias).float()


LEVER = ChunkedCrossEntropy
