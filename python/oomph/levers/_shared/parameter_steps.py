"""Steps of an optimizer, some parameters at a time."""

from __future__ import annotations

import inspect

import torch

from oomph.levers._shared.base import Lever


def only_per_parameter(lever: Lever, optimizer: torch.optim.Optimizer) -> None:
    """Raise unless `optimizer` updates each parameter by that parameter's gradient and state alone."""
    module = type(optimizer).__module__
    known = f"{module}.".startswith(
        ("torch.optim.", "torchao.optim.", "transformers.optimization.")
    )
    if isinstance(optimizer, torch.optim.LBFGS) or not known:
        raise lever.refuse(
            f"it is unknown whether {module}.{type(optimizer).__qualname__} updates each parameter separately; "
            "PyTorch's optimizers do, except LBFGS",
            manually=True,
        )


def step_only(optimizer: torch.optim.Optimizer, chosen: set[int]) -> None:
    """The optimizer's own step for the parameters with these ids, without the hooks around steps."""
    everything = [group["params"] for group in optimizer.param_groups]
    try:
        for group, params in zip(optimizer.param_groups, everything, strict=True):
            group["params"] = [p for p in params if id(p) in chosen]
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(optimizer)
    finally:
        for group, params in zip(optimizer.param_groups, everything, strict=True):
            group["params"] = params
