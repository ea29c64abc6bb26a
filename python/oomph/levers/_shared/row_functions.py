"""Functions of lazy rows that look at each row by itself, and what they come to: computed some rows at a time, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from oomph._older_python import zip
from oomph.levers._shared.autocast import Autocast
from oomph.levers._shared.deferred_rows import ELEMENTWISE, LazyRows, is_pair, whole
from oomph.levers._shared.sample_parts import empty_like

FINER = 4
"""A part of rows is so many times smaller than one whose steps are written out: each step has a result of its own."""

ENTRIES = ELEMENTWISE | {
    "__rsub__",
    "rsub",
    "log",
    "log1p",
    "logsigmoid",
    "clamp",
    "clip",
    "pow",
    "__pow__",
    "square",
    "abs",
    "relu",
    "masked_fill",
    "where",
    "detach",
    "clone",
}
"""Functions of each entry by itself."""
OVER_CLASSES = frozenset(("softmax", "log_softmax"))
"""Functions of each row that are as wide."""
FEWER = frozenset(("sum", "mean", "logsumexp", "max", "amax", "min", "amin", "argmax", "topk"))
"""Functions that leave a few numbers of each row."""


class Rows(NamedTuple):
    """A tensor of which each row has its own: (…, width)."""

    tensor: torch.Tensor


class Shared(NamedTuple):
    """A tensor that is the same for all rows: (classes), or one number."""

    tensor: torch.Tensor


class Step:
    """A function as the script called it: of steps before it, layers, `Rows`, `Shared` tensors and constants."""

    def __init__(self, func: Callable[..., Any], args: tuple, kwargs: dict, device: Any) -> None:
        """`func(*args, **kwargs)`, with the classes in the last dimension of each."""
        self.func, self.args, self.kwargs = func, args, kwargs
        self.autocast, self.has_graph = Autocast(device.type), torch.is_grad_enabled()

    def __call__(self, values: list[Any], named: list[Any]) -> Any:
        """Of the values of its arguments."""
        graph = torch.set_grad_enabled(torch.is_grad_enabled() and self.has_graph)
        with graph, self.autocast.again():
            return self.func(*values, **dict(zip(self.kwargs, named, strict=True)))


class Layer(NamedTuple):
    """The product of a layer, of lazy logits that nothing was done to."""

    logits: Any


def _parts_of(value: Any) -> Iterator[Any]:
    """All steps and leaves of a step, each as often as it is used."""
    if isinstance(value, Step):
        for part in (*value.args, *value.kwargs.values()):
            yield from _parts_of(part)
    if isinstance(value, (Step, Layer, Rows, Shared)):
        yield value


def _key(value: Any) -> Any:
    if isinstance(value, Layer):
        one = value.logits
        return id(one.hidden), id(one.weight), id(one.bias), one.casts[0]
    return id(value if isinstance(value, Step) else value.tensor)


class _Evaluation:
    """The values of steps, each kept for as long as another step wants it."""

    def __init__(self, steps: list[Any], leaf: Callable[[Any], torch.Tensor]) -> None:
        self.leaf, self.known = leaf, {}  # type: ignore[var-annotated]
        self.wanted: dict[Any, int] = {}
        seen: set[int] = set()
        waiting = list(steps)
        while waiting:
            value = waiting.pop()
            if not isinstance(value, (Step, Layer)):
                continue
            key = _key(value)
            self.wanted[key] = self.wanted.get(key, 0) + 1
            if isinstance(value, Step) and key not in seen:
                seen.add(key)
                waiting += [*value.args, *value.kwargs.values()]

    def value(self, value: Any) -> Any:
        if isinstance(value, (Rows, Shared)):
            return self.leaf(value)
        if not isinstance(value, (Step, Layer)):
            return value
        key = _key(value)
        if key not in self.known:
            if isinstance(value, Layer):
                made = self.leaf(value)
            else:
                args = [self.value(part) for part in value.args]
                made = value(args, [self.value(part) for part in value.kwargs.values()])
            self.known[key] = made
        self.wanted[key] -= 1
        return self.known[key] if self.wanted[key] else self.known.pop(key)


class RowFunction(LazyRows):
    """What a script made of lazy rows, row by row and as wide."""

    @staticmethod
    def __new__(cls, step: Step, like: LazyRows, dtype: torch.dtype) -> RowFunction:
        """As many rows as `like` has."""
        graph = torch.is_grad_enabled() and any(
            part.logits.requires_grad if isinstance(part, Layer) else part.tensor.requires_grad
            for part in _parts_of(step)
            if not isinstance(part, Step)
        )
        return torch.Tensor._make_wrapper_subclass(
            cls, tuple(like.shape), dtype=dtype, device=like.device,
            requires_grad=graph and step.has_graph,
        )  # fmt: skip

    def __init__(self, step: Step, like: LazyRows, dtype: torch.dtype) -> None:
        """As `__new__`."""
        self.step, self.classes = step, like.classes
        self.logits: torch.Tensor | None = None
        own = {_key(part): part for part in _parts_of(step) if isinstance(part, (Layer, Rows))}
        single = len(own) == 1 and next(iter(own.values()))
        self.hidden = single.logits.hidden if isinstance(single, Layer) else None

    def whole(self) -> torch.Tensor:
        """All rows at once."""
        if self.logits is None:

            def leaf(one: Any) -> torch.Tensor:
                return one.logits.whole() if isinstance(one, Layer) else one.tensor

            with torch.enable_grad():
                self.logits = _Evaluation([self.step], leaf).value(self.step)
            self.step = self.hidden = None
        return self.logits

    def origin(self) -> torch.Tensor:
        """One that has a graph, if any has."""
        leaves = [part.logits.hidden for part in _parts_of(self.step) if isinstance(part, Layer)]
        return next((one for one in leaves if one.grad_fn is not None), leaves[0])

    def like(self, hidden: torch.Tensor) -> RowFunction:
        """The same of what one layer makes of other rows."""
        return self.viewed(lambda _: hidden)

    def viewed(self, view: Callable[[torch.Tensor], torch.Tensor]) -> RowFunction:
        """Of a view of all that rows are made from."""
        known: dict[Any, Any] = {}

        def changed(value: Any) -> Any:
            if not isinstance(value, (Step, Layer, Rows)):
                return value
            key = _key(value)
            if key in known:
                return known[key]
            if isinstance(value, Layer):
                made: Any = Layer(value.logits.viewed(view))
            elif isinstance(value, Rows):
                made = Rows(view(value.tensor))
            else:
                made = Step.__new__(Step)
                made.__dict__.update(value.__dict__)
                made.args = tuple(map(changed, value.args))
                made.kwargs = {name: changed(part) for name, part in value.kwargs.items()}
            known[key] = made
            return made

        step = changed(self.step)
        first = next(part for part in _parts_of(step) if isinstance(part, Layer))
        return RowFunction(step, first.logits, self.dtype)

    def cast(self, dtype: torch.dtype) -> RowFunction:
        """In another type."""
        return self if dtype == self.dtype else function(torch.Tensor.to, (self, dtype), {})

    @classmethod
    def among(cls, func: Any, args: tuple, kwargs: dict) -> Any:
        """As `rather`."""
        return rather(func, args, kwargs)

    def as_step(self) -> Step:
        """What makes it."""
        return self.step


def rather(func: Any, args: tuple, kwargs: dict) -> Any:
    """`func(*args, **kwargs)` without all rows at once, where lazy rows are among the arguments; else `NotImplemented`."""
    name = getattr(func, "__name__", "")
    values = (*args, *kwargs.values())
    lazy = next((v for v in values if _is_lazy(v)), None)
    if lazy is None or "out" in kwargs:
        return NotImplemented
    if name in ENTRIES:
        return function(func, args, kwargs)
    if name in OVER_CLASSES:
        given = _over_classes(lazy, args, kwargs)
        return NotImplemented if given is None else function(getattr(torch, name), (lazy,), given)
    if args and args[0] is lazy:
        if name in ("unbind", "__iter__") and not kwargs and set(args[1:]) <= {0}:
            parts = [lazy[number] for number in range(lazy.shape[0])]
            return iter(parts) if name == "__iter__" else tuple(parts)
        if name == "scatter" and len(args) == 4 and _is_last(lazy, args[1]):
            return function(func, (lazy, -1, *args[2:]), kwargs)
        if name in ("gather", "take_along_dim"):
            return _gathered(lazy, name, args[1:], kwargs)
        if name in FEWER:
            return _fewer(lazy, func, name, args[1:], kwargs)
        if name == "__getitem__" and is_pair(lazy, args[1]):
            rows, classes = args[1]
            classes = torch.where(classes < 0, classes + lazy.classes, classes)[:, None]
            return _gathered(lazy.viewed(lambda t: t[rows]), "gather", (1, classes), {})[:, 0]
    if name == "kl_div":
        return _divergence(func, *args, **kwargs)
    return NotImplemented


def _is_lazy(value: Any) -> bool:
    return isinstance(value, LazyRows) and value.logits is None and hasattr(value, "as_step")


def function(func: Any, args: tuple, kwargs: dict) -> Any:
    """The lazy result of a function that is as wide as its rows, or `NotImplemented`."""
    lazy = next((v for v in (*args, *kwargs.values()) if _is_lazy(v)), None)
    if lazy is None:
        return NotImplemented
    steps = [_operand(value, lazy) for value in args]
    named = {name: _operand(value, lazy) for name, value in kwargs.items()}
    if any(step is NotImplemented for step in (*steps, *named.values())):
        return NotImplemented
    step = Step(func, tuple(steps), named, lazy.device)
    with torch.no_grad():
        dtype = _empty(step, lazy).dtype
    return RowFunction(step, lazy, dtype)


def _operand(value: Any, lazy: LazyRows) -> Any:
    """What stands for an argument in a step, or `NotImplemented`."""
    if _is_lazy(value):
        return value.as_step() if value.shape == lazy.shape else NotImplemented
    value = whole(value)
    if not isinstance(value, torch.Tensor):
        plain = value is None or isinstance(value, (int, float, str, torch.dtype))
        return value if plain else NotImplemented
    if not value.dim() or value.numel() == value.shape[-1] == lazy.classes:
        # A number may be written to before the rows are made.
        return Shared(value.reshape(value.shape[-1:]) if value.dim() else value.clone())
    if value.shape[:-1] == lazy.shape[:-1] and value.shape[-1] in (1, lazy.classes):
        return Rows(value)
    return NotImplemented


def _empty(step: Any, lazy: LazyRows) -> Any:
    """No rows of what an argument is."""
    if isinstance(step, Shared):
        return step.tensor.detach()
    if isinstance(step, Rows):
        return step.tensor.new_empty((0, step.tensor.shape[-1]))
    if not isinstance(step, (Step, Layer)):
        return step
    if isinstance(step, Layer):
        return torch.empty((0, lazy.classes), dtype=step.logits.casts[0], device=lazy.device)
    return step(
        [_empty(p, lazy) for p in step.args], [_empty(p, lazy) for p in step.kwargs.values()]
    )


def _is_last(lazy: LazyRows, dim: Any) -> bool:
    dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
    return type(dim) is int and dim in (-1, len(lazy.shape) - 1)


def _over_classes(lazy: LazyRows, args: tuple, kwargs: dict) -> dict[str, Any] | None:
    given = {name: value for name, value in kwargs.items() if name not in ("_stacklevel", "input")}
    given.update(zip(("dim", "dtype"), [v for v in args if v is not lazy], strict=False))
    if set(given) - {"dim", "dtype"} or not _is_last(lazy, given.get("dim")):
        return None
    return dict(given, dim=-1)


def _fewer(lazy: LazyRows, func: Any, name: str, args: tuple, kwargs: dict) -> Any:
    names = ("k", "dim", "largest", "sorted") if name == "topk" else ("dim", "keepdim")
    given = dict(zip(names, args, strict=False)) | kwargs
    if len(args) > len(names) or set(given) - {*names, "dtype"}:
        return NotImplemented
    if name in ("sum", "mean") and given.get("dim") is None and not given.get("dtype"):
        total = few([lazy], lambda rows, part: rows.sum(-1)).sum()
        return total if name == "sum" else total / lazy.shape.numel()
    if not _is_last(lazy, given.get("dim", -1 if name == "topk" else None)):
        return NotImplemented
    found = few([lazy], lambda rows, part: func(rows, **dict(given, dim=-1)))
    if isinstance(found, torch.Tensor):
        return found
    return getattr(torch.return_types, name)(found)


def _gathered(lazy: LazyRows, name: str, args: tuple, kwargs: dict) -> Any:
    order = ("dim", "index") if name == "gather" else ("indices", "dim")
    given = dict(zip(order, args, strict=False)) | kwargs
    index = given.get("index", given.get("indices"))
    if not isinstance(index, torch.Tensor) or not _is_last(lazy, given.get("dim")):
        return NotImplemented
    if index.shape[:-1] != lazy.shape[:-1]:
        return NotImplemented
    flat = index.reshape(-1, index.shape[-1])
    return few([lazy], lambda rows, part: rows.gather(1, flat[part]))


def _divergence(
    func: Any, input: Any, target: Any, size_average=None, reduce=None, reduction="mean", log_target=False
) -> Any:  # fmt: skip
    if size_average is not None or reduce is not None:
        return NotImplemented
    each = function(func, (input, target), dict(reduction="none", log_target=log_target))
    if each is NotImplemented or reduction == "none":
        return each
    total = each.sum()
    counts = {"sum": 1, "batchmean": each.shape[0], "mean": each.shape.numel()}
    return total / counts[reduction]


def few(lazy: list[Any], reduce: Callable[..., Any]) -> Any:
    """`reduce(*rows, part)` of all rows (n, classes) of each, where `part` says which these are: (…, what is left of a row). The
    first are lazy, others may be; `NotImplemented` if one has other rows."""
    lever, lead = LazyRows.lever, lazy[0].shape[:-1]
    steps = [_operand(one, lazy[0]) for one in lazy]
    if any(step is NotImplemented for step in steps):
        return NotImplemented
    now = Autocast(lazy[0].device.type)

    def reduced(rows: list[torch.Tensor], part: slice) -> Any:
        with now.again():
            found = reduce(*rows, part)
        return (found,) if isinstance(found, torch.Tensor) else tuple(found)

    leaves = {
        _key(part): part for step in steps for part in _parts_of(step) if not isinstance(part, Step)
    }
    tensors: list[torch.Tensor | None] = []
    places: dict[Any, int] = {}
    for key, leaf in leaves.items():
        places[key] = len(tensors)
        if isinstance(leaf, Layer):
            lever.heads.add(leaf.logits.weight.data_ptr())
            hidden, weight, bias = leaf.logits.operands()
            tensors += [hidden.reshape(-1, hidden.shape[-1]), weight, bias]
        else:
            own = isinstance(leaf, Rows)
            tensors.append(leaf.tensor.reshape(-1, leaf.tensor.shape[-1]) if own else leaf.tensor)
    by_rows = {places[key] for key, leaf in leaves.items() if not isinstance(leaf, Shared)}
    lever.applied += 1
    lever.fused += 1
    linear = lever.linear

    def run(given: list[Any], part: slice) -> Any:
        def leaf(one: Any) -> torch.Tensor:
            at = places[_key(one)]
            if not isinstance(one, Layer):
                return given[at]
            with torch.autocast(given[at].device.type, enabled=False):
                return linear(*given[at : at + 3])

        evaluation = _Evaluation(steps, leaf)
        return reduced([evaluation.value(step) for step in steps], part)

    found = InParts.apply(run, by_rows, lead.numel(), lever.chunks * FINER, *tensors)
    found = [one.reshape(*lead, *one.shape[1:]) for one in found]
    return found if len(found) > 1 else found[0]


class InParts(torch.autograd.Function):
    """A function of some rows at a time, whose backward pass makes them again."""

    @staticmethod
    def forward(
        ctx: Any, run: Any, by_rows: set[int], rows: int, chunks: int, *tensors: Any
    ) -> Any:
        ctx.run, ctx.by_rows, ctx.rows, ctx.chunks = run, by_rows, rows, chunks
        ctx.loss_reduction = "none"
        ctx.save_for_backward(*tensors)
        found: list[Any] = []
        for part in slices(rows, chunks):
            given = [t[part] if n in by_rows else t for n, t in enumerate(tensors)]
            results = run(given, part)
            found = found or [empty_like(one, 0, rows) for one in results]
            for out, one in zip(found, results, strict=True):
                out[part] = one
        ctx.mark_non_differentiable(*(one for one in found if not one.is_floating_point()))
        ctx.set_materialize_grads(False)
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        tensors, needs = ctx.saved_tensors, ctx.needs_input_grad[4:]
        sums: list[Any] = [None] * len(tensors)
        for part in slices(ctx.rows, ctx.chunks):
            given = [
                t if t is None else (t[part] if n in ctx.by_rows else t).detach()
                for n, t in enumerate(tensors)
            ]
            wanted = [n for n, need in enumerate(needs) if need]
            for n in wanted:
                given[n].requires_grad_()
            with torch.enable_grad():
                found = ctx.run(given, part)
            pairs = [
                (one, gradient[part])
                for one, gradient in zip(found, gradients, strict=True)
                if gradient is not None and one.requires_grad
            ]
            del found
            if not pairs:
                continue
            roots, by = zip(*pairs, strict=True)
            of_part = torch.autograd.grad(roots, [given[n] for n in wanted], by, allow_unused=True)
            for n, gradient in zip(wanted, of_part, strict=True):
                if gradient is None:
                    continue
                if n in ctx.by_rows:
                    if sums[n] is None:
                        sums[n] = torch.zeros_like(tensors[n])
                    sums[n][part] = gradient
                elif sums[n] is None:
                    # Sums over parts are kept in fp32 at least, as a product over all rows is.
                    # Two weights may have one gradient: each sum is a tensor of its own.
                    sums[n] = gradient.to(
                        torch.promote_types(gradient.dtype, torch.float32), copy=True
                    )
                else:
                    sums[n] += gradient
        sums = [s if s is None else s.to(t.dtype) for s, t in zip(sums, tensors, strict=True)]
        return (None, None, None, None, *sums)


def slices(rows: int, chunks: int) -> list[slice]:
    """So many parts of rows, or fewer."""
    size = max(1, -(-rows // chunks))
    return [slice(begin, min(begin + size, rows)) for begin in range(0, max(1, rows), size)]
