"""Steps of an optimizer, some parameters at a time."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch

from oomph._older_python import zip
from oomph.levers._shared.base import Lever

PACKAGES = ("torch.optim.", "torchao.optim.", "transformers.optimization.")
"""Whose optimizers update each parameter by that parameter's gradient and state alone,"""
EXCEPT = (torch.optim.LBFGS,)
"""but for these."""
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


def only_per_parameter(lever: Lever, optimizer: torch.optim.Optimizer) -> None:
    """Raise unless `optimizer` updates each parameter by that parameter's gradient and state alone."""
    module = type(optimizer).__module__
    if isinstance(optimizer, EXCEPT) or not f"{module}.".startswith(PACKAGES):
        raise lever.refuse(
            f"it is unknown whether {module}.{type(optimizer).__qualname__} updates each parameter separately; "
            "PyTorch's optimizers do, except LBFGS",
            manually=True,
        )


def steps_by_element(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it updates each element of a parameter by itself."""
    return type(optimizer) in BY_ELEMENT


def steps_by_rows(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it updates each row of a parameter with a sparse gradient by itself."""
    return type(optimizer) in BY_ROWS


def fills_with_zeros(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the state of an optimizer that steps by rows begins as zeros, in the first step."""
    return BY_ROWS[type(optimizer)]


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
) -> None:
    """The optimizer's own step for the parameters with these ids, without the hooks around steps.

    `in_place_of` has other tensors for some ids.
    """
    others = in_place_of or {}
    everything = [group["params"] for group in optimizer.param_groups]
    try:
        for group, params in zip(optimizer.param_groups, everything, strict=True):
            some = [others.get(id(p), p) for p in params]
            group["params"] = [p for p in some if id(p) in chosen]
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(optimizer)
    finally:
        for group, params in zip(optimizer.param_groups, everything, strict=True):
            group["params"] = params
