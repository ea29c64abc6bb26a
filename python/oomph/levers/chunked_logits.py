"""A language model's logits in inference: computes only those that are used, a chunk at a time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from oomph._older_python import zip
from oomph.levers._shared.autocast import Autocast
from oomph.levers._shared.base import Lever
from oomph.levers._shared.deferred_rows import ELEMENTWISE, LazyRows, is_pair, whole
from oomph.levers._shared.forward import around_forward
from oomph.levers._shared.job import Backward, Job
from oomph.levers._shared.quantized_linear import QuantizedLinear
from oomph.levers._shared.streamed_weights import STREAMED

VOCABULARY = 4096
"""A layer with fewer outputs does not count as a head over a vocabulary."""

MANY = 1 << 24
"""Logits (rows times classes) below which nothing is done: 64 MiB in fp32."""

AT_ONCE = 64 << 20
"""Bytes of fp32 logits at a time."""

FEWEST_ROWS = 256
"""The fewest rows to compute at once: with fewer, reading the weights dominates."""

PATIENCE = 2
"""How often a head's logits are computed whole before the head is left unchanged."""


class ChunkedLogits(Lever):
    """Computes a head's logits only for the positions that the script uses, a chunk at a time.

    Needs: inference with a last layer (`nn.Linear`, GPT-2's `Conv1D`) of 4096 outputs or
    more, whose weights do not change before its logits are used (changes through `.data` go
    unnoticed). Changes: logits that are sliced (`logits[:, -1]`) are computed for the slice only; losses,
    `argmax`, `topk`, `max`, `logsumexp` and what `gather` takes from (log-)probabilities are computed
    64 MiB of logits at a time. Results: to rounding, as kernels are chosen by size.

    Any other use computes the logits whole, as without the lever. If the script needs that twice,
    the head is left unchanged. So are heads whose weights are streamed.
    """

    name = "chunked_logits"

    def __init__(self) -> None:
        """No parameters."""
        super().__init__()
        self.note = (
            f"no layer of {VOCABULARY} outputs or more gave {MANY >> 20} million logits at once "
            "in a pass without gradients"
        )
        self.watched: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.spent: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        """How often a head's logits were computed whole."""

    def install(self, job: Job) -> None:
        """Wrap the heads of models, once they are final."""
        job.on_model.append(self._model)
        job.on_backward.append(self._backward)

    def _model(self, root: nn.Module, named: dict[str, nn.Module]) -> None:
        repeated = {
            part
            for module in root.modules()
            if isinstance(module, nn.ModuleList) and len(module) > 1
            for part in module.modules()
        }
        for module in root.modules():
            # Layers inside blocks widen too, for the next layer of the block.
            if _is_head(module) and module not in repeated and module not in self.watched:
                self.watched.add(module)
                around_forward(module, self._around, self.order)

    def _around(
        self, module: nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
    ) -> Any:
        hidden = args[0] if len(args) == 1 and not kwargs else None
        if (
            type(hidden) is not torch.Tensor
            or hidden.dim() < 2
            or torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or module in STREAMED
            or self.spent.get(module, 0) >= PATIENCE
        ):
            return forward(*args, **kwargs)
        classes = _outputs(module)
        if hidden.numel() // max(1, hidden.shape[-1]) * classes < MANY:
            return forward(*args, **kwargs)
        # Undone if they are computed whole after all.
        self.applied += 1
        return Logits(hidden, classes, Head(self, module, forward, hidden))

    def made(self, head: Head) -> None:
        """The output of `head` was computed whole."""
        if not head.is_spent:
            head.is_spent = True
            self.applied -= 1
            self.spent[head.module] = self.spent.get(head.module, 0) + 1

    def finish(self) -> None:
        """Report whose logits were computed whole."""
        if self.applied or self.spent:
            self.note = None
        if self.spent:
            self.add_note("the script uses whole logits, so they were computed whole")

    def _backward(self, call: Backward) -> None:
        if self.applied:
            raise self.refuse("it calls backward. For training, use chunked_cross_entropy")


def _outputs(module: Any) -> int:
    return module.nf if hasattr(module, "nf") else module.out_features


def _is_head(module: Any) -> bool:
    if isinstance(module, (nn.Linear, QuantizedLinear)):
        inputs = module.in_features
    elif type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        inputs = module.weight.shape[0]
    else:
        return False
    return _outputs(module) >= VOCABULARY and _outputs(module) > 2 * inputs


class Head:
    """A deferred call of a layer."""

    def __init__(
        self, lever: ChunkedLogits, module: nn.Module, forward: Any, hidden: torch.Tensor
    ) -> None:
        """`forward(rows)` computes the logits of `rows` (…, width)."""
        self.lever, self.module, self.forward = lever, module, forward
        self.autocast = Autocast(hidden.device.type)
        self.dtype = self.autocast.dtype or hidden.dtype
        self.given = hidden
        self.version = _version(hidden)
        self.weights = self._weights()
        self.is_spent = False
        self.was_read = False
        """Whether the script has values that were computed in chunks."""

    def _weights(self) -> list[tuple[int, int]]:
        own = (*self.module._parameters.values(), *self.module._buffers.values())
        return [(id(t), _version(t)) for t in own if t is not None]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The logits of `rows`, of those that the layer was given."""
        if _version(self.given) != self.version:
            raise self.lever.refuse(
                "the head's input was changed in place before its logits were used",
                manually=True,
            )
        if self._weights() != self.weights:
            raise self.lever.refuse(
                "the head's weights were changed before its logits were used",
                manually=True,
            )
        with torch.no_grad(), self.autocast.again():
            return self.forward(rows)


def _version(t: torch.Tensor) -> int:
    return 0 if t.is_inference() else t._version


class Step:
    """A function of each row alone (a cast, a softmax), as the script calls it."""

    def __init__(self, func: Any, args: tuple, kwargs: dict, device: torch.device) -> None:
        """`func(rows, *args, **kwargs)`, of rows in the last dimension."""
        # Numbers that are tensors (a temperature) may be written to before the logits are made.
        self.func, self.args = func, tuple(map(_as_it_is, args))
        self.kwargs = {name: _as_it_is(value) for name, value in kwargs.items()}
        self.autocast = Autocast(device.type)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Of rows (…, classes)."""
        with self.autocast.again():
            return self.func(rows, *self.args, **self.kwargs)


def _as_it_is(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


class Logits(LazyRows):
    """Lazy logits, and row-wise functions of them.

    Derived tensors know their source. Once logits are computed, so is everything derived
    from them. Before a write to one of a family, all of it is computed, with views staying
    views.
    """

    FEWEST = 1

    @staticmethod
    def __new__(cls, hidden: Any, classes: int, head: Head, steps: tuple = ()) -> Logits:
        """`hidden` (…, width); `steps` follow on what `head` makes of it."""
        dtype = head.dtype
        if steps:
            probe = torch.empty((0, classes), dtype=dtype, device=hidden.device)
            for step in steps:
                probe = step(probe)
            dtype = probe.dtype
        return torch.Tensor._make_wrapper_subclass(
            cls, (*hidden.shape[:-1], classes), dtype=dtype, device=hidden.device
        )

    def __init__(self, hidden: Any, classes: int, head: Head, steps: tuple = ()) -> None:
        """As `__new__`."""
        self.hidden, self.classes, self.head, self.steps = hidden, classes, head, steps
        self.logits: torch.Tensor | None = None
        self.source: weakref.ref[Logits] | None = None
        self.derive: Any = None
        """Makes this one from the rows of `source`."""
        self.derived: list[weakref.ref[Logits]] = []

    def whole(self) -> torch.Tensor:
        """All rows at once, as the layer gives them."""
        if self.logits is None:
            source = self.source() if self.source is not None else None
            if source is not None and source.logits is not None:
                self.logits = self.derive(source.logits)
            else:
                if self.hidden.numel() // self.hidden.shape[-1] * self.classes >= MANY:
                    self.head.lever.made(self.head)
                self.logits = self._made()
            for ref in self.derived:
                if (other := ref()) is not None:
                    other.whole()
        return self.logits

    def _made(self) -> torch.Tensor:
        if not self.head.was_read or not self.hidden.numel():
            return self._rows(self.hidden)
        # Values computed in chunks must compare equal later: `logits[logits < logits.topk(1).values] = -inf`.
        made = None
        with torch.no_grad():
            for part, rows in _parts(self):
                if made is None:
                    made = rows.new_empty((self.shape[:-1].numel(), self.classes))
                made[part] = rows
                del rows
        assert made is not None
        return made.reshape(self.shape)

    def _rows(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = self.head(hidden)
        for step in self.steps:
            rows = step(rows)
        return rows

    def like(self, hidden: torch.Tensor) -> Logits:
        """Other rows of the same head."""
        return Logits(hidden, self.classes, self.head, self.steps)

    def then(self, func: Any, *args: Any, **kwargs: Any) -> Logits:
        """What `func` makes of each row."""
        step = Step(func, args, kwargs, self.hidden.device)
        return Logits(self.hidden, self.classes, self.head, (*self.steps, step))

    def cast(self, dtype: torch.dtype) -> Logits:
        """In another type."""
        return self if dtype == self.dtype else self.then(torch.Tensor.to, dtype)

    def rather(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Views, row-wise functions, and reductions to a few numbers per row."""
        name = getattr(func, "__name__", "")
        result = NotImplemented
        if name in ("detach", "clone") and not kwargs:
            result = self.like(self.hidden)
        elif name in ELEMENTWISE and all(map(_is_number, (*args, *kwargs.values()))):
            result = self.then(func, *args, **kwargs)
        elif name in ("softmax", "log_softmax"):
            given = _over_classes(self, args, kwargs)
            if given is not None:
                given.pop("_stacklevel", None)
                result = self.then(getattr(torch, name), **given)
        elif name in REDUCTIONS:
            result = REDUCTIONS[name](self, func, args, kwargs)
        elif name in ("cross_entropy", "nll_loss"):
            result = _loss(self, func, args, kwargs)
        elif name == "__getitem__" and is_pair(self, args[0]) and args[0][0].numel():
            rows, classes = args[0]
            classes = torch.where(classes < 0, classes + self.classes, classes)
            picked = self.like(self.hidden[rows])
            result = _gather(picked, torch.gather, (1, classes[:, None]), {})
            result = result[:, 0] if isinstance(result, torch.Tensor) else result
        else:
            result = super().rather(func, args, kwargs)
        if isinstance(result, Logits) and result is not self:
            result.source = weakref.ref(self)
            result.derive = lambda rows: func(rows, *args, **kwargs)
            self.derived.append(weakref.ref(result))
        return result

    def _settle(self) -> None:
        """Compute everything left of this family, from its source on."""
        eldest = self
        while eldest.source is not None and (older := eldest.source()) is not None:
            eldest = older
        eldest.whole()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Also parts of a batch, joined."""
        name = getattr(func, "__name__", "")
        if name in WRITES or (name.endswith("_") and not name.endswith("__")):
            for value in (*args, *(kwargs or {}).values()):
                if isinstance(value, Logits):
                    value._settle()
        elif func in (torch.cat, torch.concat):
            joined = _joined(*args, **(kwargs or {}))
            if joined is not None:
                return joined
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Code bypassed `__torch_function__`: there are no gradients to lose."""
        return func(*whole(args), **{key: whole(value) for key, value in (kwargs or {}).items()})


WRITES = frozenset(
    f"__{name}__" for name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow")
)


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and not isinstance(value, LazyRows)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _over_classes(logits: Logits, args: tuple, kwargs: dict) -> dict[str, Any] | None:
    """The arguments of a function over the last dimension, as keywords with `dim` -1; else None."""
    if len(args) > 1 or "out" in kwargs:
        return None
    given = dict(kwargs, **({"dim": args[0]} if args else {}))
    return dict(given, dim=-1) if _is_last(logits, given.get("dim")) else None


def _is_last(logits: Logits, dim: Any) -> bool:
    return type(dim) is int and dim in (-1, logits.hidden.dim() - 1)


def _parts(logits: Logits) -> Iterator[tuple[slice, torch.Tensor]]:
    """Rows (n, classes), a part of all of them at a time, and which they are."""
    hidden = logits.hidden.reshape(-1, logits.hidden.shape[-1])
    at_once = max(FEWEST_ROWS, AT_ONCE // (4 * logits.classes))
    for begin in range(0, hidden.shape[0], at_once):
        part = slice(begin, min(begin + at_once, hidden.shape[0]))
        yield part, logits._rows(hidden[part])


def _each(logits: Logits, function: Any) -> list[tuple[torch.Tensor, ...]]:
    """`function(rows, part)` of each part of the rows (n, classes), in the types that are said now."""
    now = Autocast(logits.hidden.device.type)
    logits.head.was_read = True
    found = []
    # Autocast keeps cast weights until the outermost context ends.
    with torch.no_grad(), logits.head.autocast.again():
        for part, rows in _parts(logits):
            with now.again():
                result = function(rows, part)
            del rows
            found.append(tuple(result) if not isinstance(result, torch.Tensor) else (result,))
    return found


def _few(logits: Logits, function: Any) -> list[torch.Tensor] | None:
    """`function` reduces each row; one tensor (…, left) for each of its results."""
    if not logits.hidden.numel():
        return None
    lead = logits.hidden.shape[:-1]
    return [
        torch.cat(parts).reshape(*lead, *parts[0].shape[1:])
        for parts in zip(*_each(logits, function), strict=True)
    ]


def _reduced(logits: Logits, func: Any, args: tuple, kwargs: dict) -> Any:
    """`argmax`, `max`, `logsumexp`, … over the classes."""
    names = ("dim", "keepdim")
    if len(args) > len(names) or set(kwargs) - {*names, "dtype"}:
        return NotImplemented
    given = dict(zip(names, args, strict=False)) | kwargs
    if isinstance(given.get("dim"), (tuple, list)) and len(given["dim"]) == 1:
        given["dim"] = given["dim"][0]
    if not _is_last(logits, given.get("dim")):
        return NotImplemented
    given["dim"] = -1
    found = _few(logits, lambda rows, part: func(rows, **given))
    if found is None:
        return NotImplemented
    return torch.return_types.max(found) if len(found) > 1 else found[0]


def _top(logits: Logits, func: Any, args: tuple, kwargs: dict) -> Any:
    names = ("k", "dim", "largest", "sorted")
    given = dict(zip(names, args, strict=False)) | kwargs
    if set(given) - set(names) or not _is_last(logits, given.get("dim", -1)):
        return NotImplemented
    given["dim"] = -1
    found = _few(logits, lambda rows, part: func(rows, **given))
    return NotImplemented if found is None else torch.return_types.topk(found)


def _gather(logits: Logits, func: Any, args: tuple, kwargs: dict) -> Any:
    given = dict(zip(("dim", "index"), args, strict=False)) | kwargs
    index = given.get("index")
    if (
        set(given) != {"dim", "index"}
        or not _is_last(logits, given["dim"])
        or type(index) is not torch.Tensor
        or index.shape[:-1] != logits.hidden.shape[:-1]
        or not index.numel()
    ):
        return NotImplemented
    flat = index.reshape(-1, index.shape[-1])
    found = _few(logits, lambda rows, part: rows.gather(1, flat[part]))
    return NotImplemented if found is None else found[0]


REDUCTIONS = dict.fromkeys(("argmax", "max", "amax", "logsumexp", "sum", "mean"), _reduced) | dict(
    topk=_top, gather=_gather
)
"""Functions that reduce each row to a few numbers."""


def _loss(logits: Logits, func: Any, args: tuple, kwargs: dict) -> Any:
    """`cross_entropy(logits, target)` and `nll_loss`, of class indices as targets."""
    names = ("target", "weight", "size_average", "ignore_index", "reduce", "reduction")
    given = dict(zip(names, args, strict=False)) | kwargs
    target, weight = given.pop("target", None), given.get("weight")
    if (
        len(args) > len(names)
        or logits.hidden.dim() != 2
        or type(target) is not torch.Tensor
        or target.is_floating_point()
        or target.shape != logits.hidden.shape[:-1]
        or not target.numel()
    ):
        return NotImplemented
    if given.get("size_average") is not None or given.get("reduce") is not None:
        return NotImplemented
    reduction = given.pop("reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        return NotImplemented
    losses = _few(logits, lambda rows, part: func(rows, target[part], reduction="none", **given))
    if losses is None or reduction == "none":
        return NotImplemented if losses is None else losses[0]
    if reduction == "sum":
        return losses[0].sum()
    kept = target != given.get("ignore_index", -100)
    if weight is None:
        return losses[0].sum() / kept.sum()
    return losses[0].sum() / (weight[target.masked_fill(~kept, 0)] * kept).sum()


def _joined(tensors: Any, dim: Any = 0, **others: Any) -> Logits | None:
    """Parts of what one head gave, joined in another dimension than the last."""
    if type(tensors) not in (list, tuple) or others or type(dim) is not int:
        return None
    first = tensors[0]
    if not all(isinstance(t, Logits) and t.logits is None for t in tensors):
        return None
    same = all(
        t.head.module is first.head.module
        and not t.steps
        and t.head.dtype == first.head.dtype
        and t.head.version == _version(t.head.given)
        for t in tensors
    )
    if not same or dim % first.hidden.dim() == first.hidden.dim() - 1:
        return None
    hidden = torch.cat([t.hidden for t in tensors], dim)
    head = Head(first.head.lever, first.head.module, first.head.forward, hidden)
    head.autocast, head.dtype = first.head.autocast, first.head.dtype
    return Logits(hidden, first.classes, head)


LEVER = ChunkedLogits
