"""Attention that is written out becomes one kernel, which never writes the matrix of scores."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from oomph._older_python import zip
from oomph.levers._shared.autocast import Autocast
from oomph.levers._shared.base import Lever
from oomph.levers._shared.compiled import refuse_compiled
from oomph.levers._shared.deferred_rows import METADATA
from oomph.levers._shared.forward import NamedModules, around_forward
from oomph.levers._shared.job import Job

NEVER = -1e9
"""A score at or below it hides a position as infinity does: what is added to it is lost in rounding."""


class FusedAttention(Lever):
    """`softmax(q @ k.T * scale + mask) @ v` becomes `scaled_dot_product_attention`.

    Needs: modules whose forward multiplies queries by keys (`@`, `matmul`, `bmm`, `baddbmm`, `einsum`), and the softmax of
    that, after scales and masks, by values. Changes: the product of queries and keys is lazy. If it meets values after a softmax, one
    kernel computes all of it, and scores exist neither in the forward nor in the backward pass. Whatever else is done
    with scores or weights, also dropout, computes them as without the lever. Results: to rounding.
    """

    name = "fused_attention"

    def __init__(self, modules: list[str]) -> None:
        """`modules`: names as in the plan file."""
        super().__init__()
        if not modules:
            raise self.refuse("it names no modules")
        self.places = NamedModules(modules)
        self.fused: set[str] = set()
        """Modules whose attention was one kernel."""
        self.written: dict[str, dict[str, None]] = {}
        """For each use that computed scores, the modules."""
        self.last_mask: Any = None

    def install(self, job: Job) -> None:
        """Step in when a model is called first."""
        job.on_model.append(self._model)

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        for name, module in self.places.take(named).items():
            refuse_compiled(self, name, named)
            around_forward(module, self._around(name), self.order)

    def _around(self, name: str) -> Callable[..., Any]:
        def around(module: torch.nn.Module, forward: Any, args: tuple, kwargs: dict) -> Any:
            if torch.compiler.is_compiling():
                return forward(*args, **kwargs)
            with _Products(self, name):
                return forward(*args, **kwargs)

        return around

    def as_mask(
        self, mask: torch.Tensor, dtype: torch.dtype, may_hide: bool
    ) -> torch.Tensor | None:
        """`mask` in the type of the product, one tensor for all modules that share it; None if no kernel does as the script.

        In the backward pass a kernel takes the weights of a row that finite numbers hide entirely for 1 each.
        """
        source = mask if mask._base is None else mask._base
        key = (_version(source), mask.shape, mask.stride(), mask.storage_offset(), dtype)
        if self.last_mask is not None:
            of, known, cast = self.last_mask
            if of() is source and known == key and (made := cast()) is not None:
                return made
        if may_hide and torch.is_grad_enabled():
            most = mask.detach().amax(-1).nan_to_num(neginf=0.0)
            if float(most.min()) <= NEVER:
                return None
        made = mask
        if mask.dtype != dtype:
            # Nor must the least number of a wider type become infinite.
            least = mask.new_full((), torch.finfo(dtype).min)
            made = torch.where(mask == -math.inf, mask, mask.maximum(least)).to(dtype)
        if not mask.requires_grad:
            self.last_mask = weakref.ref(source), key, weakref.ref(made)
        return made

    def finish(self) -> None:
        """Count the modules, and report where scores were computed."""
        self.applied = len(self.fused)
        if problem := self.places.problem():
            self.add_note(problem)
        for use, names in self.written.items():
            self.add_note(
                f"scores of {len(names)} modules exist because of {use}: {', '.join([*names][:3])}"
            )
        if not self.fused:
            self.add_note("no product of queries and keys met values after a softmax")
        written = dict.fromkeys(name for names in self.written.values() for name in names)
        self.left_alone = [name for name in written if name not in self.fused]


class _Products(TorchFunctionMode):
    """Inside, products of queries and keys are lazy."""

    def __init__(self, lever: FusedAttention, module: str) -> None:
        super().__init__()
        self._lever, self._module = lever, module

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = _product(func, args, kwargs)
        if given is None:
            return func(*args, **kwargs)
        form, dtype = given
        return Scores(State(self._lever, self._module, form, dtype, None, func, args, kwargs))


@dataclasses.dataclass(frozen=True)
class Form:
    """What scores are: `q @ k.transpose(-2, -1) * scale + mask`, or their softmax."""

    q: torch.Tensor
    """(…, length, width)."""
    k: torch.Tensor
    """(…, positions, width)."""
    lead: tuple[int, ...]
    """The dimensions before the last two that the script gave them."""
    scale: float = 1.0
    mask: torch.Tensor | None = None
    """It broadcasts to `q`'s leading dimensions, length and positions."""
    may_hide: bool = False
    """Whether finite numbers in the mask may hide all of a row."""
    is_softmax: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the scores."""
        return (*self.lead, self.q.shape[-2], self.k.shape[-2])


class State:
    """How scores came about: one function of the script after the other."""

    def __init__(self, lever, module, form, dtype, parent, func, args, kwargs) -> None:
        """`func(*args, **kwargs)`, where `parent` stands for the scores among `args`."""
        self.lever, self.module, self.form, self.dtype = lever, module, form, dtype
        self.parent: State | None = parent
        self.call = func, args, kwargs
        self.grads, self.autocast = torch.is_grad_enabled(), Autocast(form.q.device.type)
        self.versions = [(t, _version(t)) for t in (form.q, form.k, form.mask) if t is not None]
        self.made: torch.Tensor | None = None
        self.derived: list[weakref.ref[State]] = []
        self.source = None if parent is None else weakref.ref(parent)
        if parent is not None:
            parent.derived.append(weakref.ref(self))

    def is_lazy(self) -> bool:
        """Whether nothing that this follows from was computed."""
        return self.made is None and (self.parent is None or self.parent.is_lazy())

    def check(self) -> None:
        """Raise if what scores follow from is no longer what it was."""
        if any(_version(t) != version for t, version in self.versions):
            raise self.lever.refuse(
                f"{self.module} changes queries, keys or masks in place before it uses the scores",
                manually=True,
                modules=[self.module],
            )

    def whole(self) -> torch.Tensor:
        """The scores as the script's own functions compute them."""
        if self.made is None:
            self.check()
            func, args, kwargs = self.call
            if self.parent is not None:
                value = self.parent.whole()
                args = tuple(value if arg is _HERE else arg for arg in args)
            # Whoever asks first may want no gradients; others may.
            with torch.set_grad_enabled(self.grads), self.autocast.again():
                self.made = func(*args, **kwargs)
            self.parent, self.call = None, (None, (), {})
        return self.made

    def settle(self) -> None:
        """Compute all of the family, of which something is about to change."""
        eldest = self
        while eldest.source is not None and (older := eldest.source()) is not None:
            eldest = older
        family = [eldest]
        for member in family:
            member.whole()
            family += [other for ref in member.derived if (other := ref()) is not None]

    def is_shared(self) -> bool:
        """Whether something else follows from it."""
        return any(ref() is not None for ref in self.derived)


_HERE = object()
"""Stands for the scores among a function's arguments."""


class Scores(torch.Tensor):
    """Scores or weights of attention that are not computed yet."""

    state: State

    @staticmethod
    def __new__(cls, state: State) -> Scores:
        """As `state` says."""
        form = state.form
        grads = state.grads and any(
            t is not None and t.requires_grad for t in (form.q, form.k, form.mask)
        )
        return torch.Tensor._make_wrapper_subclass(
            cls, form.shape, dtype=state.dtype, device=form.q.device, requires_grad=grads
        )

    def __init__(self, state: State) -> None:
        """As `__new__`."""
        self.state = state
        if self.requires_grad:
            lever, module = state.lever, state.module

            def lost(_: torch.Tensor) -> None:
                raise lever.refuse(
                    f"{module} passes its scores to code that takes their gradient out of sight",
                    manually=True,
                    modules=[module],
                )

            with torch._C.DisableTorchFunctionSubclass():
                self.register_hook(lost)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Stay lazy, become attention, or compute."""
        kwargs = kwargs or {}
        if func in METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        result = _lazily(func, name, args, kwargs)
        if result is not NotImplemented:
            return result
        if name in WRITES or (name.endswith("_") and not name.endswith("__")) or "out" in kwargs:
            for value in (*args, *kwargs.values()):
                if isinstance(value, Scores):
                    _whole(value, name)
                    value.state.settle()
        use = "dropout" if "dropout" in name else name
        return func(*_whole(args, use), **{key: _whole(v, use) for key, v in kwargs.items()})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Code bypassed `__torch_function__`: the hook sees to gradients."""
        kwargs = kwargs or {}
        use = str(func)
        return func(*_whole(args, use), **{key: _whole(v, use) for key, v in kwargs.items()})


WRITES = frozenset(
    f"__{name}__" for name in ("setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow")
)


def _whole(value: Any, use: str) -> Any:
    if isinstance(value, Scores):
        state = value.state
        if state.made is None:
            state.lever.written.setdefault(use, {})[state.module] = None
        return state.whole()
    if type(value) in (list, tuple):
        return type(value)(_whole(item, use) for item in value)
    return value


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _is_plain(*tensors: Any) -> bool:
    return all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(tensor: torch.Tensor, autocast: Autocast) -> torch.dtype:
    """The type in which a product with `tensor` is computed."""
    return autocast.dtype or tensor.dtype


def _subscripts(equation: Any, count: int) -> list[str] | None:
    """Of an einsum of `count` operands, with its result, if it names all dimensions once."""
    if not isinstance(equation, str) or "->" not in equation:
        return None
    left, out = equation.replace(" ", "").split("->")
    terms = [*left.split(","), out]
    if "." in equation or len(terms) != count + 1 or any(len(set(t)) != len(t) for t in terms):
        return None
    return terms


def _product(func: Any, args: tuple, kwargs: dict) -> tuple[Form, torch.dtype] | None:
    """The scores that a product is, with their type; None if it may be something else."""
    name = getattr(func, "__name__", "")
    scale, mask = 1.0, None
    if name in ("matmul", "__matmul__", "bmm"):
        if len(args) != 2 or kwargs or not _is_plain(*args):
            return None
        q, k = args
        if q.dim() != k.dim() or q.dim() < 3:
            return None
        k = k.transpose(-2, -1)
    elif name == "baddbmm":
        beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
        if len(args) != 3 or kwargs.keys() - {"beta", "alpha"} or not _is_plain(*args):
            return None
        if not _is_number(beta) or not _is_number(alpha):
            return None
        added, q, k = args
        k, scale = k.transpose(-2, -1), float(alpha)
        mask = None if beta == 0 else added if beta == 1 else added * beta
    elif name == "einsum":
        terms = _subscripts(args[0], 2) if len(args) == 3 and not kwargs else None
        if terms is None or not _is_plain(*args[1:]):
            return None
        (a, b, out), (q, k) = terms, args[1:]
        if out[-2:-1] in b and out[-2:-1] not in a:
            a, b, q, k = b, a, k, q
        lead, length, position = out[:-2], out[-2:-1], out[-1:]
        width = set(a) & set(b) - set(out)
        if len(width) != 1 or len(out) < 3 or len(a) != q.dim() or len(b) != k.dim():
            return None
        (width_,) = width
        if set(a) != {*lead, length, width_} or set(b) != {*lead, position, width_}:
            return None
        q = q.permute([a.index(letter) for letter in lead + length + width_])
        k = k.permute([b.index(letter) for letter in lead + position + width_])
    else:
        return None
    if (
        q.shape[:-2] != k.shape[:-2]
        or q.shape[-1] != k.shape[-1]
        or q.dtype != k.dtype
        or not q.is_floating_point()
        or q.layout != torch.strided
        # Scores are wider than what they are made of, unlike the product of weights and values.
        or not (k.shape[-2] > k.shape[-1] and q.shape[-2] > q.shape[-1])
    ):
        return None
    form = Form(q, k, tuple(q.shape[:-2]), scale)
    dtype = _kind(q, Autocast(q.device.type))
    if mask is not None:
        masked = _masked(form, mask, dtype)
        if masked is None:
            return None
        form = masked
    return form, dtype


def _masked(
    form: Form, mask: torch.Tensor, kind: torch.dtype, may_hide: bool = True
) -> Form | None:
    """With `mask` added, which the script gave scores of `form`; `kind` is the type of the product."""
    shape = form.shape
    if (
        form.is_softmax
        or form.lead != tuple(form.q.shape[:-2])
        or not _is_plain(mask)
        or not mask.is_floating_point()
        or (kind == torch.float16 and mask.dtype != kind)
        or mask.dim() > len(shape)
        or any(m not in (1, n) for m, n in zip(mask.shape[::-1], shape[::-1], strict=False))
    ):
        return None
    may_hide = form.may_hide or (may_hide and not mask.requires_grad)
    mask = mask if form.mask is None else form.mask + mask
    return dataclasses.replace(form, mask=mask, may_hide=may_hide)


def _hidden(form: Form, hidden: Any, value: Any, kind: torch.dtype) -> Form | None:
    """With `value` where `hidden` is true."""
    if isinstance(value, torch.Tensor):
        if type(value) is not torch.Tensor or value.dim() or value.device.type != "cpu":
            return None
        value = value.item()
    if type(hidden) is not torch.Tensor or hidden.dtype != torch.bool or not _is_number(value):
        return None
    if value > NEVER or (kind == torch.float16 and value != -math.inf):
        return None
    value = value if value == -math.inf else max(value, torch.finfo(kind).min)
    mask = torch.zeros_like(hidden, dtype=kind).masked_fill_(hidden, value)
    return _masked(form, mask, kind, value != -math.inf)


MULTIPLIES = ("mul", "__mul__", "__rmul__", "multiply")
DIVIDES = ("div", "__truediv__", "divide", "true_divide")
ADDS = ("add", "__add__", "__radd__")
IN_PLACE = {
    "mul_": "mul", "__imul__": "mul", "div_": "div", "__itruediv__": "div", "add_": "add",
    "__iadd__": "add", "masked_fill_": "masked_fill", "sub_": "sub", "__isub__": "sub",
}  # fmt: skip
CASTS = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16}


def _lazily(func: Any, name: str, args: tuple, kwargs: dict) -> Any:
    """`func(*args, **kwargs)` without computing scores, or `NotImplemented`."""
    lazy = [arg for arg in args if isinstance(arg, Scores)]
    if name == "einsum" and len(args) == 2 and type(args[1]) in (list, tuple):
        args = (args[0], *args[1])
        lazy = [arg for arg in args if isinstance(arg, Scores)]
    if len(lazy) != 1 or not lazy[0].state.is_lazy():
        return NotImplemented
    scores = lazy[0]
    state = scores.state
    if state.grads != torch.is_grad_enabled():
        return NotImplemented
    form, dtype = state.form, state.dtype
    if name in ("matmul", "__matmul__", "bmm"):
        if len(args) == 2 and args[0] is scores and not kwargs:
            return _attend(state, args[1])
        return NotImplemented
    if name == "einsum":
        return _attend_by(state, scores, args) if not kwargs else NotImplemented
    changes = name in IN_PLACE
    if changes and (state.is_shared() or (state.parent and state.call[0] in VIEWS)):
        return NotImplemented
    place = next(at for at, arg in enumerate(args) if arg is scores)
    others = [arg for arg in args if arg is not scores]
    what = _next(form, dtype, IN_PLACE.get(name, name), others, kwargs, place, state)
    if what is None:
        return NotImplemented
    form, new = what
    if form is state.form and new == dtype and name not in ("view", "reshape"):
        return scores  # as PyTorch does
    if changes and new != dtype:
        return NotImplemented
    state.check()
    args = tuple(_HERE if arg is scores else arg for arg in args)
    made = State(state.lever, state.module, form, new, state, func, args, kwargs)
    if not changes:
        return Scores(made)
    scores.state = made
    return scores


VIEWS = (torch.Tensor.view, torch.Tensor.reshape, torch.reshape)


def _next(
    form: Form, dtype, name: str, others: list, kwargs: dict, place: int, state: State
) -> Any:
    """The form and type of what a function makes of scores; None if it is something else."""
    kind = _kind(form.q, state.autocast)
    other: Any = others[0] if len(others) == 1 and not kwargs else None
    if name in MULTIPLIES or (name in DIVIDES and place == 0):
        divides = name in DIVIDES
        if form.is_softmax or form.mask is not None:
            return None
        if _is_number(other) and (other or not divides):
            factor = 1 / other if divides else other
            return dataclasses.replace(form, scale=form.scale * factor), dtype
        if _is_plain(other) and other.is_floating_point():
            # Of whole matrices (a temperature, one for each head): queries take it.
            if other.dim() > len(form.shape) or any(n != 1 for n in other.shape[-2:]):
                return None
            if form.lead != tuple(form.q.shape[:-2]):
                return None
            q = form.q / other if divides else form.q * other
            if q.shape != form.q.shape:
                return None
            with_it = dataclasses.replace(form, q=q.to(form.q.dtype))
            return with_it, _promoted(dtype, other)
        return None
    if name in ADDS or (name == "sub" and place == 0) or name == "__sub__":
        if not _is_plain(other):
            return None
        sign = -1 if "sub" in name else 1
        masked = _masked(form, other if sign > 0 else -other, kind)
        return None if masked is None else (masked, _promoted(dtype, other))
    if name == "masked_fill":
        given = dict(zip(("mask", "value"), others, strict=False)) | kwargs
        if place or given.keys() != {"mask", "value"}:
            return None
        hidden = _hidden(form, given["mask"], given["value"], kind)
        return None if hidden is None else (hidden, dtype)
    if name == "where":
        if kwargs or len(others) != 2 or type(others[0]) is not torch.Tensor or place not in (1, 2):
            return None
        if others[0].dtype != torch.bool:
            return None
        kept, value = others
        hidden = _hidden(form, ~kept if place == 1 else kept, value, kind)
        return None if hidden is None else (hidden, dtype)
    if name == "softmax":
        given = dict(
            zip(
                ("dim", "dtype") if len(others) < 3 else ("dim", "_stacklevel", "dtype"),
                others,
                strict=False,
            )
        )
        given |= kwargs
        given.pop("_stacklevel", None)
        if "input" in given or form.is_softmax or given.keys() - {"dim", "dtype"}:
            return None
        if given.get("dim") not in (-1, len(form.shape) - 1):
            return None
        wanted = given.get("dtype") or (
            torch.float32 if Autocast(form.q.device.type).dtype else dtype
        )
        return dataclasses.replace(form, is_softmax=True), wanted
    if name == "dropout":
        given = dict(zip(("p", "training", "inplace"), others, strict=False)) | kwargs
        idle = given.get("training", True) is False or given.get("p", 0.5) == 0
        return (form, dtype) if idle and not place else None
    if name in CASTS and not others and not kwargs:
        return form, CASTS[name]
    if name in ("to", "type", "type_as") and not kwargs.keys() - {"dtype"}:
        wanted = [*others, *kwargs.values()]
        if len(wanted) != 1:
            return None
        wanted = wanted[0].dtype if _is_plain(wanted[0]) else wanted[0]
        is_type = isinstance(wanted, torch.dtype) and wanted.is_floating_point
        return (form, wanted) if is_type else None
    if name == "contiguous" and not others and not kwargs:
        return form, dtype
    if name in ("view", "reshape") and not kwargs and not place:
        return _viewed(form, others, dtype)
    return None


def _promoted(dtype: torch.dtype, other: torch.Tensor) -> torch.dtype:
    return torch.result_type(torch.empty(1, dtype=dtype, device="cpu"), other)


def _viewed(form: Form, others: list, dtype: torch.dtype) -> tuple[Form, torch.dtype] | None:
    """Other leading dimensions."""
    shape = others[0] if len(others) == 1 and not isinstance(others[0], int) else others
    if isinstance(shape, torch.dtype) or not all(isinstance(n, int) for n in shape):
        return None
    *lead, length, positions = shape if len(shape) > 2 else (0, 0, 0)
    known = math.prod(n for n in lead if n != -1)
    if (length, positions) != form.shape[-2:] or lead.count(-1) > 1 or not known:
        return None
    count = math.prod(form.lead)
    lead = [count // known if n == -1 else n for n in lead]
    if math.prod(lead) != count:
        return None
    if form.mask is not None or form.is_softmax:
        return dataclasses.replace(form, lead=tuple(lead)), dtype
    q, k = (t.reshape(*lead, *t.shape[-2:]) for t in (form.q, form.k))
    return dataclasses.replace(form, q=q, k=k, lead=tuple(lead)), dtype


def _attend_by(state: State, scores: Scores, args: tuple) -> Any:
    """An einsum of weights and values."""
    terms = _subscripts(args[0], 2) if len(args) == 3 else None
    if terms is None:
        return NotImplemented
    a, b, out = terms
    v = args[2]
    if args[1] is not scores:
        a, b, v = b, a, args[1]
    lead, length, position = a[:-2], a[-2:-1], a[-1:]
    width = set(b) - set(a)
    if len(width) != 1 or not _is_plain(v) or len(b) != v.dim() or len(a) != len(state.form.shape):
        return NotImplemented
    (width_,) = width
    if set(b) != {*lead, position, width_} or set(out) != {*lead, length, width_}:
        return NotImplemented
    result = _attend(state, v.permute([b.index(letter) for letter in lead + position + width_]))
    if result is NotImplemented:
        return result
    return result.permute([(lead + length + width_).index(letter) for letter in out])


def _attend(state: State, v: Any) -> Any:
    """The weights times `v` (…, positions, width of values), by one kernel."""
    form = state.form
    if not form.is_softmax or not _is_plain(v) or v.shape[:-1] != (*form.lead, form.k.shape[-2]):
        return NotImplemented
    now = Autocast(v.device.type)
    kind = _kind(v, now)
    first = state
    while first.parent is not None:
        first = first.parent
    if (
        first.autocast.dtype != now.dtype
        or _kind(form.q, now) != kind
        or (now.dtype is None and state.dtype != kind)
    ):
        return NotImplemented
    state.check()
    lead = form.q.shape[:-2]
    # Kernels take two leading dimensions.
    batches = (math.prod(lead[:-1]), lead[-1])
    mask = form.mask
    off = torch.autocast(v.device.type, enabled=False) if now.dtype else contextlib.nullcontext()
    with off:
        if mask is not None:
            mask = state.lever.as_mask(mask, kind, form.may_hide)
            if mask is None:
                return NotImplemented
            mask = mask.reshape((1,) * (len(lead) + 2 - mask.dim()) + mask.shape)
            if mask.shape[: len(lead) - 1].numel() > 1 and len(lead) > 2:
                mask = mask.expand(*lead[:-1], *mask.shape[-3:])
            mask = mask.reshape(-1, *mask.shape[-3:])
        q, k, v = (t.to(kind).reshape(*batches, *t.shape[-2:]) for t in (form.q, form.k, v))
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=form.scale)
    state.lever.fused.add(state.module)
    # In memory as a product, which the script may view.
    return out.contiguous().view(*form.lead, *out.shape[-2:])


LEVER = FusedAttention
