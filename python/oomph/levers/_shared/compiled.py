"""Modules that torch.compile compiles: levers that step in around a forward leave them alone."""

from __future__ import annotations

import torch

from oomph.levers._shared.base import Lever

_never = False


def never() -> None:
    """Nothing is compiled from now on, whatever the script asks for."""
    global _never
    _never = True


def is_never() -> bool:
    """Whether that was said."""
    return _never


def refuse_compiled(lever: Lever, name: str, named: dict[str, torch.nn.Module]) -> None:
    """Raise if module `name` is compiled as part of a whole."""
    if _never:
        return
    for other, module in named.items():
        compiled = (
            type(module).__name__ == "OptimizedModule"
            or getattr(module, "_compiled_call_impl", None) is not None
        )
        if compiled and (name == other or name.startswith(other + ".")):
            raise lever.refuse(
                f"{name} is compiled by torch.compile, which itself decides what is kept and what is "
                "computed again",
                instead="take the lever activation_memory_budget, or set "
                "torch._functorch.config.activation_memory_budget to a share below 1 before torch.compile",
                modules=[name],
            )


@torch._disable_dynamo  # what is compiled cannot raise this
def refuse_in_compiled(lever: Lever, name: str) -> None:
    """Raise: module `name` is called by a compiled function."""
    raise lever.refuse(
        f"{name} is called inside a function that is compiled by torch.compile", modules=[name]
    )
