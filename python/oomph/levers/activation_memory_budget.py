"""What compiled models keep for the backward pass."""

from __future__ import annotations

import functools
from typing import Any

import torch

from oomph._import_hooks import on_import
from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job


class ActivationMemoryBudget(Lever):
    """`torch._functorch.config.activation_memory_budget`.

    Needs: torch.compile with a backend that partitions by AOTAutograd's minimum cut, as Inductor does, and
    torch 2.4. Changes: the partitioner keeps at most this share of what it would keep, and the backward pass
    computes the rest again, what takes few operations first. Results: to rounding. What is outside of
    compiled code stays as it is.
    """

    name = "activation_memory_budget"

    def __init__(self, percent: int) -> None:
        """`percent`: of what would be kept without it."""
        super().__init__()
        if not 0 <= percent <= 100:
            raise self.refuse(f"percent must be from 0 to 100, not {percent}")
        self.share = percent / 100

    def install(self, job: Job) -> None:
        """Set it, and again before each compilation: the script may set it too."""
        import torch._functorch.config as config

        if not hasattr(config, self.name):
            raise self.refuse(f"torch {torch.__version__} has no {config.__name__}.{self.name}")
        self.config = config
        setattr(config, self.name, self.share)
        on_import("torch._dynamo.backends.common", self._watch)

    def _watch(self, common: Any) -> None:
        original = common.AotAutograd.__call__

        @functools.wraps(original)
        def compiles(backend: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self.config, self.name) != self.share:
                setattr(self.config, self.name, self.share)
                self.add_note("the script's own setting was replaced")
            # Without gradients there is no backward pass to keep anything for.
            self.applied += torch.is_grad_enabled()
            return original(backend, *args, **kwargs)

        common.AotAutograd.__call__ = compiles

    def finish(self) -> None:
        """Inert if nothing was compiled with gradients."""
        if not self.applied:
            self.add_note("nothing was compiled with gradients")


LEVER = ActivationMemoryBudget
