"""Cross-entropy over a large vocabulary, a chunk of rows at a time."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch.nn import functional

from oomph._older_python import zip
from oomph._torch_features import find
from oomph.levers._shared import row_functions
from oomph.levers._shared.base import Lever
from oomph.levers._shared.deferred_rows import LazyRows, whole
from oomph.levers._shared.job import Job
from oomph.levers._shared.row_functions import Layer, RowFunction, Step, slices

VOCABULARY = 4096
"""Below this number of classes, logits are small compared with their inputs."""

MANY = 1 << 24
"""Logits (rows times classes) below which nothing is done: 64 MiB in fp32."""


class ChunkedCrossEntropy(Lever):
    """Computes the loss over a vocabulary, and its gradients, in chunks of rows.

    Needs: `cross_entropy` (or `CrossEntropyLoss`, or a Hugging Face loss, which call it) with class
    indices as targets, over 4096 classes or more; or `log_softmax` of a linear layer and `nll_loss`.
    Changes: logits that come from a linear layer and are used only by the loss never exist as a whole: gradients
    are computed with the loss, a chunk at a time. Other logits exist, but without copies in fp32. Results: the same to rounding.

    Logits with other uses (accuracy, a penalty) are also computed as a whole.
    """

    name = "chunked_cross_entropy"

    def __init__(self, chunks: int) -> None:
        """`chunks`: the number of parts."""
        super().__init__()
        if chunks < 2:
            raise self.refuse(f"chunks is {chunks}; at least 2 are needed")
        self.chunks = chunks
        self.fused = 0
        self.whole = 0
        self.heads: set[int] = set()
        """Addresses of weights whose outputs were a loss's logits."""
        self.others: dict[int, int] = {}
        """How often the outputs of a weight had other uses."""

    def install(self, job: Job) -> None:
        """Step in at `linear` and `cross_entropy`."""
        LazyRows.serve(self)
        self.linear, self.cross_entropy = functional.linear, functional.cross_entropy
        self.nll_loss = functional.nll_loss

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
            if isinstance(input, MovedLogits) and input.has_classes_of(target):
                loss = functional.cross_entropy(input.rows(), target.reshape(-1), **options)
                return loss.view(target.shape) if reduction == "none" else loss
            if self._fits(input, target):
                return self._loss(input, target, options)
            rows = self._of_rows(input, target, **options)
            if rows is not None:
                return rows
            return self.cross_entropy(whole(input), target, **options)

        @functools.wraps(self.nll_loss)
        def nll_loss(input: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(input, LazyLogits) and input.logged:
                # Log-probabilities are their own log-softmax, so this is a cross-entropy with the same
                # names and order of arguments.
                return functional.cross_entropy(input, *args, **kwargs)
            return self.nll_loss(whole(input), *args, **kwargs)

        matmul = torch.Tensor.matmul

        def product(input: Any, other: Any) -> Any:
            # A weight that was transposed, as of an embedding that is the head, too.
            if (
                isinstance(other, torch.Tensor)
                and other.dim() == 2
                and other.shape[1] >= VOCABULARY
                and other.stride(0) == 1
                and isinstance(input, torch.Tensor)
                and not torch.compiler.is_compiling()
                and self._may_wait(input, other.t())
            ):
                return LazyLogits(input, other.t(), None)
            return matmul(input, other)

        torch.Tensor.__matmul__ = torch.Tensor.matmul = product  # type: ignore[assignment,method-assign]
        functional.nll_loss = nll_loss
        functional.linear = linear  # type: ignore[assignment]
        functional.cross_entropy = cross_entropy

    def _may_wait(self, input: Any, weight: Any) -> bool:
        """Whether the output of a linear layer may be the logits of a loss."""
        return (
            type(input) is torch.Tensor
            and type(weight) in (torch.Tensor, torch.nn.Parameter)
            # Without gradients, those of a teacher or a reference.
            and (input.requires_grad or weight.requires_grad or not torch.is_grad_enabled())
            and not torch.is_inference_mode_enabled()
            and input.dim() >= 2
            and weight.shape[0] > 2 * weight.shape[1]
            and _rows(input) * weight.shape[0] >= MANY
            and (
                LazyLogits.AS_BEFORE
                or self.others.get(weight.data_ptr(), 0) < 2
                or weight.data_ptr() in self.heads
            )
            # A checkpointed part's second forward is not the place of a loss.
            and torch._C._current_graph_task_id() == LazyLogits.GRAPH_TASK
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
            and _rows(input) * input.shape[1] >= MANY
            and (
                isinstance(input, LazyLogits)
                or (type(input) is torch.Tensor and torch.is_grad_enabled() and input.requires_grad)
            )
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
            hidden, weight, bias = whole(input), None, None
        with torch.autocast(input.device.type, enabled=False):
            loss = _ChunkedLoss.apply(
                hidden, weight, bias, target, self.chunks, tuple(options.values())
            )
            return loss.to(dtype)

    def _of_rows(
        self, input: Any, target: Any, weight, ignore_index, reduction, label_smoothing
    ) -> Any:
        """The loss of what a script made of lazy logits, or of probabilities as targets; None if it needs them whole."""
        lazy = isinstance(input, (LazyLogits, RowFunction)) and input.logits is None
        if not lazy or len(input.shape) != 2 or not isinstance(target, torch.Tensor):
            return None
        options: dict[str, Any] = dict(weight=weight, label_smoothing=label_smoothing)
        options["reduction"] = "none"
        if target.shape == input.shape:
            if weight is not None:
                return None
            each = row_functions.few(
                [input, target],
                lambda rows, targets, part: self.cross_entropy(rows, targets, **options),
            )
            if each is NotImplemented:
                return None
            count: Any = len(each)
        elif target.dim() == 1 and not target.is_floating_point():
            options["ignore_index"] = ignore_index
            each = row_functions.few(
                [input], lambda rows, part: self.cross_entropy(rows, target[part], **options)
            )
            kept = target != ignore_index
            count = (
                kept.sum()
                if weight is None
                else (weight[target.masked_fill(~kept, 0)] * kept).sum()
            )
        else:
            return None
        if reduction == "none":
            return each
        return each.sum() if reduction == "sum" else each.sum() / count

    def finish(self) -> None:
        """Report where the logits still existed."""
        if not self.applied:
            self.add_note(
                f"no cross-entropy with gradients over {VOCABULARY} classes or more and class indices "
                "as targets"
            )
        elif self.whole:
            self.add_note(
                f"{self.whole} of {self.applied} losses had logits that do not come directly from a "
                "linear layer: they exist as a whole, without copies in fp32"
            )
        if self.heads & self.others.keys():
            self.add_note(
                "the script uses logits for more than the loss, so they were also computed whole"
            )


def _rows(input: torch.Tensor) -> float:
    """Rows that the whole batch has."""
    return input.numel() // max(1, input.shape[-1]) * LazyLogits.BATCHES


MOVES = (
    torch.Tensor.transpose,
    torch.transpose,
    torch.Tensor.swapaxes,
    torch.swapaxes,
    torch.Tensor.permute,
    torch.permute,
    torch.Tensor.movedim,
    torch.movedim,
    torch.Tensor.mT.__get__,
)
"""What may move the classes to where `cross_entropy` wants them."""
LOG_SOFTMAX = (functional.log_softmax, torch.log_softmax, torch.Tensor.log_softmax)


class LazyLogits(LazyRows):
    """The lazy output of a linear layer with many outputs.

    Views that keep the last dimension whole, casts, and `log_softmax` over the classes are lazy too.
    Anything but these and cross-entropy computes the logits.
    """

    @staticmethod
    def __new__(
        cls, hidden: Any, weight: Any, bias: Any, casts: tuple = (), logged: bool = False
    ) -> LazyLogits:
        """`hidden` (…, width), `weight` (classes, width), `bias` (classes) or None; `casts` follow, and
        `log_softmax` if `logged`."""
        kind = hidden.device.type
        autocast = torch.is_autocast_enabled(kind) if not casts else False
        dtype = casts[-1] if casts else torch.get_autocast_dtype(kind) if autocast else hidden.dtype
        self = torch.Tensor._make_wrapper_subclass(
            cls,
            (*hidden.shape[:-1], weight.shape[0]),
            dtype=dtype,
            device=hidden.device,
            requires_grad=torch.is_grad_enabled(),
        )
        return self

    def __init__(
        self, hidden: Any, weight: Any, bias: Any, casts: tuple = (), logged: bool = False
    ) -> None:
        """As `__new__`."""
        if not torch.is_grad_enabled():
            hidden, weight, bias = (t if t is None else t.detach() for t in (hidden, weight, bias))
        self.hidden, self.weight, self.bias, self.casts = hidden, weight, bias, casts
        self.logged, self.version = logged, weight._version
        self.classes = weight.shape[0]
        self.logits: torch.Tensor | None = None
        if not casts:
            # Autocast's current type is the compute type.
            with torch._C.DisableTorchFunctionSubclass():
                self.casts = (self.dtype,)

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Hidden rows, weight and bias, in the type in which the layer computes."""
        if self.weight._version != self.version:
            raise self.lever.refuse(
                "it uses logits after their layer's weights have changed (an accuracy after the step)",
                manually=True,
            )
        dtype = self.casts[0]
        bias = None if self.bias is None else self.bias.to(dtype)
        return self.hidden.to(dtype), self.weight.to(dtype), bias

    def whole(self) -> torch.Tensor:
        """The logits themselves."""
        if self.logits is None:
            lever = self.lever
            pointer = self.weight.data_ptr()
            lever.others[pointer] = lever.others.get(pointer, 0) + 1
            # Whoever asks first may not want a graph; others may.
            graph = torch.set_grad_enabled(self.requires_grad)
            with graph, torch.autocast(self.hidden.device.type, enabled=False):
                logits = lever.linear(*self.operands())
                for dtype in self.casts[1:]:
                    logits = logits.to(dtype)
                if self.logged:
                    logits = functional.log_softmax(logits, -1)
            self.logits = logits
        return self.logits

    def like(self, hidden: torch.Tensor) -> LazyLogits:
        """Of other rows."""
        return self._with(hidden, self.casts, self.logged)

    def cast(self, dtype: torch.dtype) -> LazyLogits:
        """In another type."""
        casts = self.casts if dtype == self.casts[-1] else (*self.casts, dtype)
        return self._with(self.hidden, casts, self.logged)

    def _with(self, hidden: torch.Tensor, casts: tuple, logged: bool) -> LazyLogits:
        with torch.set_grad_enabled(self.requires_grad and torch.is_grad_enabled()):
            made = LazyLogits(hidden, self.weight, self.bias, casts, logged)
        made.version = self.version
        return made

    def as_step(self) -> Any:
        """What makes it."""
        step: Any = Layer(self._with(self.hidden, self.casts[:1], False))
        device = self.hidden.device
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            for dtype in self.casts[1:]:
                step = Step(torch.Tensor.to, (step, dtype), {}, device)
            return Step(torch.log_softmax, (step, -1), {}, device) if self.logged else step

    @classmethod
    def among(cls, func: Any, args: tuple, kwargs: dict) -> Any:
        """What looks at each row by itself."""
        return row_functions.rather(func, args, kwargs)

    def rather(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Also the logarithms of probabilities, and the classes as the second dimension."""
        if func in LOG_SOFTMAX:
            return self._logged(*args, **kwargs)
        if func in MOVES and self.hidden.dim() > 2:
            # On a tensor without elements, whose dimensions show which went where.
            sizes = torch.empty((0, *range(1, self.hidden.dim())))
            moved = func(sizes, *args, **kwargs).shape == sizes.movedim(-1, 1).shape
            return MovedLogits(self) if moved else NotImplemented
        lazy = super().rather(func, args, kwargs)
        # Another type after the logarithm is none before it.
        if self.logged and lazy is not NotImplemented and lazy.dtype != self.dtype:
            return NotImplemented
        return lazy

    def _logged(self, dim: int | None = None, *_: Any, dtype: Any = None, **__: Any) -> Any:
        if dim not in (-1, len(self.shape) - 1):
            return NotImplemented
        kind = self.hidden.device.type
        dtype = dtype or (torch.float32 if torch.is_autocast_enabled(kind) else self.dtype)
        if self.logged and dtype != self.dtype:
            return NotImplemented
        return self._with(self.hidden, self.cast(dtype).casts, True)


class MovedLogits(LazyRows):
    """Lazy logits whose classes are the second dimension, as `cross_entropy` takes them for sequences."""

    @staticmethod
    def __new__(cls, logits: LazyLogits) -> MovedLogits:
        """`logits` (samples, …, classes), of three dimensions or more."""
        samples, *others, classes = logits.shape
        return torch.Tensor._make_wrapper_subclass(
            cls,
            (samples, classes, *others),
            dtype=logits.dtype,
            device=logits.device,
            requires_grad=logits.requires_grad,
        )

    def __init__(self, logits: LazyLogits) -> None:
        """As `__new__`."""
        self._unmoved, self.hidden, self.classes = logits, logits.hidden, logits.classes
        self.logits: torch.Tensor | None = None

    def has_classes_of(self, target: Any) -> bool:
        """Whether `target` has one class for each row."""
        samples, _, *others = self.shape
        return isinstance(target, torch.Tensor) and target.shape == (samples, *others)

    def rows(self) -> Any:
        """(rows, classes): lazy, unless the logits were computed for something else."""
        return self._unmoved.flatten(0, -2)

    def whole(self) -> torch.Tensor:
        """The logits themselves, moved."""
        if self.logits is None:
            self.logits = self._unmoved.whole().movedim(-1, 1)
        return self.logits

    def like(self, hidden: torch.Tensor) -> MovedLogits:
        """Of other rows."""
        return MovedLogits(self._unmoved.like(hidden))

    def cast(self, dtype: torch.dtype) -> MovedLogits:
        """In another type."""
        return MovedLogits(self._unmoved.cast(dtype))

    def rather(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Only casts leave rows whole."""
        casts = (torch.Tensor.float, torch.Tensor.to, torch.Tensor.contiguous)
        return super().rather(func, args, kwargs) if func in casts else NotImplemented


class _ChunkedLoss(torch.autograd.Function):
    """Cross-entropy of `hidden @ weight.T + bias` (of `hidden` itself without a weight).

    The gradients of a loss that is one number are known with it, but for a factor: they are computed then, and no logits are
    computed again. If each row has a loss of its own and the weight needs a gradient, the backward pass computes them again.
    """

    @staticmethod
    def forward(ctx: Any, hidden, weight, bias, target, chunks, options):
        classes, ignored, reduction, smoothing = options
        kept = target != ignored
        # Ignored rows get a valid class.
        safe = target.masked_fill(~kept, 0)
        factors = kept.float() if classes is None else classes.float()[safe] * kept
        given = (hidden, weight, bias, safe, kept, factors, classes)
        ctx.chunks, ctx.smoothing = chunks, smoothing
        ctx.dtypes = [None if each is None else each.dtype for each in (hidden, weight, bias)]
        # How it reduces, for levers that split batches.
        ctx.loss_reduction = reduction
        ctx.again = reduction == "none" and any(ctx.needs_input_grad[1:3])
        ctx.range, ctx.grads = 1.0, None
        if ctx.again:
            losses, _ = _walk(*given, smoothing, chunks)
            ctx.save_for_backward(*given)
            return losses
        if hidden.dtype == torch.float16:
            # Probabilities are small numbers for this type: as large as the sums over a chunk's rows allow.
            rows = -(-hidden.shape[0] // chunks)
            ctx.range = float(min(64, max(1, 1 << (4096 // rows).bit_length() >> 1)))
        with _full_reduction():
            losses, ctx.grads = _walk(
                *given, smoothing, chunks, ctx.needs_input_grad[:3], factors.new_full((), ctx.range)
            )
        count = factors.sum() if reduction == "mean" else None
        # PyTorch itself refuses a second backward pass, unless the graph was to be kept.
        ctx.save_for_backward(count)
        if reduction == "none":
            return losses
        if reduction == "sum":
            return losses.sum()
        ctx.loss_count = count
        return losses.sum() / count

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor):
        nothing = (None, None, None)
        if ctx.again:
            hidden, weight, bias, safe, rows, factors, classes = ctx.saved_tensors
            with _full_reduction():
                _, grads = _walk(
                    hidden, weight, bias, safe, rows, factors, classes, ctx.smoothing, ctx.chunks,
                    ctx.needs_input_grad[:3], grad.float(),
                )  # fmt: skip
            grads = (
                each if each is None else each.to(dtype)
                for each, dtype in zip(grads, ctx.dtypes, strict=True)
            )
            return (*grads, *nothing)
        (count,) = ctx.saved_tensors
        scale = grad.float() / ctx.range
        if count is not None:
            scale = scale / count
        kept, grads = _keeps_graph(), ctx.grads
        if not kept:
            ctx.grads = None
        scaled = (
            _scaled(each, scale, kept, dtype) for each, dtype in zip(grads, ctx.dtypes, strict=True)
        )
        return (*scaled, *nothing)


def _walk(
    hidden,
    weight,
    bias,
    safe,
    kept,
    factors,
    classes,
    smoothing,
    chunks,
    needs=(False,) * 3,
    by=None,
):
    """The losses of rows, and the gradients of hidden, weight and bias that are needed, where rows count `by`: a number, or one for
    each. Sums over chunks are kept in fp32, as a product over all rows is."""
    rows = hidden.shape[0]
    losses = torch.empty(rows, dtype=torch.float32, device=hidden.device)
    d_hidden = hidden.new_empty(hidden.shape) if needs[0] else None
    d_weight = torch.zeros_like(weight, dtype=torch.float32) if needs[1] else None
    d_bias = torch.zeros_like(bias, dtype=torch.float32) if needs[2] else None
    for part in slices(rows, chunks):
        logits = hidden[part] if weight is None else torch._C._nn.linear(hidden[part], weight, bias)
        logs = torch.log_softmax(logits, 1, dtype=torch.float32)
        count = logs.shape[1]
        del logits
        loss = -factors[part] * logs.gather(1, safe[part, None])[:, 0]
        if smoothing:
            every = None if classes is None else classes.float()
            smooth = logs.sum(1) if every is None else logs @ every
            loss = (1 - smoothing) * loss - smoothing / count * smooth * kept[part]
        losses[part] = loss
        if by is None or not any(needs):
            continue
        # The softmax, in the memory of its logarithm, becomes the gradient.
        d, hit = logs.exp_(), factors[part]
        counts = by if by.dim() == 0 else by[part]
        if smoothing:
            hit, share = hit * (1 - smoothing), smoothing / count * kept[part]
            if every is None:
                d.mul_((hit + share * count)[:, None]).sub_(share[:, None])
            else:
                d.mul_((hit + share * every.sum())[:, None]).addr_(share, every, alpha=-1)
            d.scatter_add_(1, safe[part, None], -hit[:, None])
            counts = counts.expand(hit.shape)
        else:
            d.scatter_add_(1, safe[part, None], d.new_full((), -1.0).expand(hit.shape)[:, None])
            counts = counts * hit
        if d_bias is not None:
            d_bias.addmv_(d.t(), counts)
        if weight is None:
            if d_hidden is not None:
                torch.mul(d, counts[:, None], out=d_hidden[part])
            continue
        own = d if hidden.dtype == d.dtype else torch.empty_like(d, dtype=hidden.dtype)
        torch.mul(d, counts[:, None], out=own)
        del d, logs
        if d_hidden is not None:
            torch.mm(own, weight, out=d_hidden[part])
        if d_weight is not None:
            if hidden.dtype == torch.float32:
                d_weight.addmm_(own.t(), hidden[part])
            else:
                d_weight.add_(own.t() @ hidden[part])
        del own
    return losses, (d_hidden, d_weight, d_bias)


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


def _keeps_graph() -> bool:
    """Whether the backward pass that is running may be followed by another of the same graph."""
    keeps = find("keeps_graph")
    return True if keeps is None else keeps()


def _scaled(grad: Any, scale: torch.Tensor, keep: bool, dtype: torch.dtype) -> Any:
    """`grad` times `scale` (one number, or one for each row), in `dtype`; in its own memory unless it is to be kept."""
    if grad is None:
        return None
    scale = scale[:, None] if scale.dim() else scale
    if grad.dtype == dtype and not keep and dtype == torch.float32:
        return grad.mul_(scale)
    return torch.mul(grad, scale, out=grad.new_empty(grad.shape, dtype=dtype))


LEVER = ChunkedCrossEntropy
