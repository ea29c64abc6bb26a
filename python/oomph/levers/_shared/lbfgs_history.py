"""The history of `torch.optim.LBFGS` in host memory."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import lbfgs


class History(list):
    """Vectors in pinned host memory: one that is read by its number comes to the GPU that it left.

    The copies run where the optimizer computes, which needs one vector after the other.
    """

    def __init__(self, moved: Callable[[], None]) -> None:
        """`moved` is called with each vector that leaves."""
        super().__init__()
        self._moved = moved
        self._device = torch.device("cpu")

    def append(self, vector: torch.Tensor) -> None:
        """Keep a copy on the host."""
        if vector.is_cuda:
            self._moved()
            self._device = vector.device
            host = torch.empty_like(vector, device="cpu", pin_memory=True)
            vector = host.copy_(vector, non_blocking=True)
        super().append(vector)

    def __getitem__(self, index: Any) -> Any:
        """A copy on the GPU."""
        found = super().__getitem__(index)
        if isinstance(found, torch.Tensor):
            return found.to(self._device, non_blocking=True)
        return [one.to(self._device) for one in found]


def as_lists(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """The state that a script saves, without classes of oomph's."""
    state = {
        number: {name: list(iter(v)) if isinstance(v, History) else v for name, v in of_one.items()}
        for number, of_one in saved["state"].items()
    }
    return {**saved, "state": state}


def keep_on_host(moved: Callable[[], None]) -> bool:
    """Let `LBFGS` make its lists of directions and steps so; whether they are where they are looked for."""
    step = inspect.unwrap(torch.optim.LBFGS.step)
    source = textwrap.dedent(inspect.getsource(step))
    for name in ("old_dirs", "old_stps"):
        if source.count(f"{name} = []") != 1:
            return False
        source = source.replace(f"{name} = []", f"{name} = _history()")
    lines = "\n" * (step.__code__.co_firstlineno - 1)
    scope = {**vars(lbfgs), "_history": lambda: History(moved)}
    exec(compile(lines + source, step.__code__.co_filename, "exec"), scope)
    torch.optim.LBFGS.step = scope["step"]  # type: ignore[method-assign]
    return True
