"""Steps of an optimizer, some parameters at a time."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from oomph._older_python import zip
from oomph.levers._shared.base import Lever

PACKAGES = ("torch.optim.", "torchao.optim.", "transformers.optimization.")
"""Whose optimizers update each parameter by that parameter's gradient and state alone,"""
EXCEPT = (torch.optim.LBFGS,)
"""but for these. Others are tried out."""
BY_ROWS = {torch.optim.SparseAdam: True, torch.optim.Adagrad: False}
"""Those that update, for a sparse gradient, only the rows that it has, and each by itself; and whether
their state is made in the first step, of zeros, or with the optimizer. SGD updates rows too, but has no
state of them; its momentum of sparse gradients is sparse itself. No other takes sparse gradients."""

BY_ELEMENT = (
    *(torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.Adamax),
    *(torch.optim.AdamW, torch.optim.ASGD, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.RMSprop, torch.optim.Rprop, torch.optim.SGD),
)
"""Those that update each element of a parameter by that element's gradient and state alone."""


def only_per_parameter(lever: Lever, optimizer: torch.optim.Optimizer, steps: bool = True) -> None:
    """Raise unless `optimizer` updates each parameter by that parameter's gradient and state alone.

    Of one that is not known this is tried out when it `steps`; before, it need not be complete.
    """
    module = type(optimizer).__module__
    if isinstance(optimizer, EXCEPT) or (steps and how_it_updates(optimizer) is None):
        raise lever.refuse(
            f"{module}.{type(optimizer).__qualname__} does not update each parameter separately, as far as small "
            "parameters show; PyTorch's optimizers do, except LBFGS",
            manually=True,
        )


def is_known(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it is of a package whose optimizers update each parameter by itself, and count steps by parameter."""
    return f"{type(optimizer).__module__}.".startswith(PACKAGES)


def how_it_updates(optimizer: torch.optim.Optimizer) -> str | None:
    """`element` or `parameter`: what it updates by itself; None if it may look at all."""
    if type(optimizer) in BY_ELEMENT:
        return "element"
    if is_known(optimizer):
        return None if isinstance(optimizer, EXCEPT) else "parameter"
    if optimizer not in _found:
        _found[optimizer] = _try_out(optimizer)
    return _found[optimizer]


_found: weakref.WeakKeyDictionary[torch.optim.Optimizer, str | None] = weakref.WeakKeyDictionary()


_OF_ALL = {"defaults", "param_groups", "state", "step", "_opt_called"}
"""What each optimizer has, or a scheduler gives it; so are hooks, named `_optimizer_…`."""


def _try_out(optimizer: torch.optim.Optimizer) -> str | None:
    """Step small parameters on the CPU: all at once, one after the other, and row after row."""
    own = {name: value for name, value in vars(optimizer).items() if name not in _OF_ALL}
    if not all(name.startswith("_optimizer_") or _is_plain(value) for name, value in own.items()):
        return None  # it may step parameters that it holds elsewhere
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return None  # its step may wait for the other ranks
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        try:
            (whole, _), (apart, _), (by_rows, nested) = (
                _tried(optimizer, *how) for how in ((1, 0), (1, 1), (2, 1))
            )
        except Exception:
            return None
        try:
            equal = [torch.allclose(a, b, 1e-4, 1e-6) for a, b in zip(whole, apart, strict=True)]
            rows = [torch.allclose(a, b, 1e-4, 1e-6) for a, b in zip(whole, by_rows, strict=True)]
        except RuntimeError:
            return None
    if not all(equal):
        return None
    # What is in lists of its state is not told apart by rows.
    return "element" if all(rows) and not nested else "parameter"


def _is_plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (int, float, str, torch.dtype, torch.device))


def _tried(
    optimizer: torch.optim.Optimizer, cuts: int, apart: bool
) -> tuple[list[torch.Tensor], bool]:
    """What three steps make of small parameters of the same dimensions, each in so many cuts along the first one; whether their
    states hold lists or the like."""
    draw = torch.Generator().manual_seed(0)
    other = object.__new__(type(optimizer))
    vars(other).update(vars(optimizer))
    vars(other).pop("step", None)
    other.state = defaultdict(dict)
    other.param_groups = []
    pieces: list[list[torch.Tensor]] = []
    for group in optimizer.param_groups:
        shapes = {tuple(min(size, 6) for size in p.shape): p.dtype for p in group["params"]}
        mine = []
        for shape, dtype in [*shapes.items(), *shapes.items()]:
            p = torch.randn(shape, generator=draw).to(dtype)
            mine.append([q.clone().requires_grad_() for q in p.tensor_split(cuts if shape else 1)])
        pieces += mine
        params = [q for piece in mine for q in piece if len(q.shape) == 0 or len(q)]
        other.param_groups.append({**group, "params": params})
    everything = [q for group in other.param_groups for q in group["params"]]
    for _ in range(3):
        for piece in pieces:
            size = sum(q.numel() for q in piece)
            gradient = 10 * torch.randn(size, generator=draw)
            for q, part in zip(piece, gradient.split([q.numel() for q in piece]), strict=True):
                q.grad = part.view(q.shape).to(q.dtype)
        for q in everything if apart else ():
            step_only(other, {id(q)})
            q.grad = None
        step_only(other, set() if apart else {id(q) for q in everything}, counts=True)
    values = [value for state in other.state.values() for value in state.values()]
    nested = any(isinstance(value, (list, tuple, dict)) for value in values)
    return [torch.cat([q.detach().flatten() for q in piece]) for piece in pieces], nested


def steps_by_element(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it updates each element of a parameter, or each row, by itself."""
    return how_it_updates(optimizer) == "element"


def steps_by_rows(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it updates each row of a parameter with a sparse gradient by itself."""
    return type(optimizer) in BY_ROWS


def fills_with_zeros(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the state of an optimizer that steps by rows begins as zeros, in the first step."""
    return BY_ROWS[type(optimizer)]


NOT_CLEARED = "it clears gradients by other means than zero_grad (p.grad = None, say), or adds to those of the step before"
"""Why a lever after whose step gradients are gone refuses a script: it cannot tell these two apart."""


def cleared(target: torch.nn.Module | torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """The parameters whose gradients `target.zero_grad()` clears."""
    if isinstance(target, torch.nn.Module):
        return target.parameters()
    return (p for group in target.param_groups for p in group["params"])


LEAST_GRADIENT = 256 << 10
"""Smaller gradients stay on the GPU where others wait in host memory, and so do their weights."""

AT_ONCE = 64 << 20
"""The most bytes of parameters that step together, where what belongs to them is on the host: at least one parameter."""
SHARE, FEWEST = 16, 4 << 20
"""A small optimizer steps in so many parts, unless they are smaller than so many bytes: with all of it on
the GPU at once, nothing would be saved."""


def bytes_at_once(steps: list[torch.Tensor]) -> int:
    """The bytes of parameters that step together, of all that step."""
    return min(AT_ONCE, max(FEWEST, sum(p.nbytes for p in steps) // SHARE))


class AroundStep:
    """Makes an optimizer's `step` call a function in its place, after the closure."""

    def __init__(
        self, function: Callable[[torch.optim.Optimizer, Callable[..., Any]], None]
    ) -> None:
        """With the optimizer and its own step."""
        self.function = function
        self._inside = False

    def install(self) -> None:
        """Go inside of the hooks that PyTorch puts around all steps."""
        original = torch.optim.Optimizer.profile_hook_step

        def hooked(step: Any) -> Any:
            return original(self(step))

        torch.optim.Optimizer.profile_hook_step = staticmethod(hooked)  # type: ignore[method-assign]

    def __call__(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A step in place of this one."""

        @functools.wraps(original)
        def step(optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
            # super().step() of a subclass, or one that evaluates its closure itself
            if self._inside or isinstance(optimizer, torch.optim.LBFGS):
                return original(optimizer, closure)
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._inside = True
            try:
                self.function(optimizer, original)
            finally:
                self._inside = False
            return loss

        return step


class OnGradient:
    """Calls a function with each parameter of some optimizers as soon as its gradient is complete."""

    def __init__(self, function: Callable[[torch.Tensor], None]) -> None:
        """Of none yet."""
        self.function = function
        self.hooked: set[int] = set()
        """Ids of the parameters."""
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        original = torch.optim.Optimizer.add_param_group

        @functools.wraps(original)
        def add(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if optimizer in self._optimizers:
                self.of(optimizer)

        torch.optim.Optimizer.add_param_group = add  # type: ignore[method-assign]

    def of(self, optimizer: torch.optim.Optimizer) -> None:
        """Its parameters, and those that it gets later."""
        self._optimizers.add(optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.requires_grad and id(p) not in self.hooked:
                    self.hooked.add(id(p))
                    p.register_post_accumulate_grad_hook(self.function)


def step_only(
    optimizer: torch.optim.Optimizer,
    chosen: set[int],
    in_place_of: dict[int, torch.Tensor] | None = None,
    counts: bool = False,
) -> None:
    """The optimizer's own step for the parameters with these ids, without the hooks around steps.

    `in_place_of` has other tensors for some ids. What an optimizer that is not known counts in its groups or itself stays as it was,
    unless this `counts`: one call of each step does, if only for stand-ins.
    """
    before = None if counts or is_known(optimizer) else _counters(optimizer)
    everything = [group["params"] for group in optimizer.param_groups]
    stand_ins: list[torch.Tensor] = []
    try:
        for group, params in zip(optimizer.param_groups, everything, strict=True):
            some = [in_place_of.get(id(p), p) for p in params] if in_place_of else params
            group["params"] = [p for p in some if id(p) in chosen]
            if counts and not chosen and params and not is_known(optimizer):
                # Functions over lists fail without any (`torch._foreach_mul_`).
                stand_ins.append(_stand_in(params[0]))
                group["params"] = [stand_ins[-1]]
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(optimizer)
    finally:
        for group, params in zip(optimizer.param_groups, everything, strict=True):
            group["params"] = params
        for one in stand_ins:
            optimizer.state.pop(one, None)
        for place, values in before or ():
            for name in [name for name, value in place.items() if _counts(value)]:
                if name not in values:
                    del place[name]
            place.update(values)


def _stand_in(p: torch.Tensor) -> torch.Tensor:
    """A parameter of one element, whose gradient is zero."""
    one = torch.zeros((1,) * p.dim(), dtype=p.dtype, device=p.device, requires_grad=True)
    one.grad = torch.zeros_like(one)
    return one


def what_is_left(optimizer: torch.optim.Optimizer, step: Callable[..., Any]) -> None:
    """The script's own `step` for parameters that have not stepped yet; what the optimizer counts goes up."""
    params = (p for group in optimizer.param_groups for p in group["params"])
    if is_known(optimizer) or any(p.grad is not None for p in params):
        step(optimizer)
    else:
        step_only(optimizer, set(), counts=True)


def _counters(optimizer: torch.optim.Optimizer) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Numbers and small tensors of its groups and its own, with where they are."""
    places = [*optimizer.param_groups, vars(optimizer)]
    return [
        (
            place,
            {
                k: v.clone() if isinstance(v, torch.Tensor) else v
                for k, v in place.items()
                if _counts(v)
            },
        )
        for place in places
    ]


def _counts(value: object) -> bool:
    small = isinstance(value, torch.Tensor) and value.numel() == 1
    return small or (isinstance(value, (int, float)) and not isinstance(value, bool))
