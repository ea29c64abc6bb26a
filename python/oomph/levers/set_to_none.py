"""`zero_grad(set_to_none=True)`."""

from __future__ import annotations

import functools
from typing import Any

import torch

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Job


class SetToNone(Lever):
    """Gradients are freed instead of filled with zeros.

    Needs: a script that asks for zeros (`zero_grad(set_to_none=False)`); PyTorch's default frees.
    Changes: gradients are not alive beside the activations of the next forward pass. Results: exact if
    every parameter gets a gradient in each step. The optimizer skips a parameter without a gradient, but
    would decay the weight and moments of one with a zero gradient.
    """

    name = "set_to_none"

    def install(self, job: Job) -> None:
        """Both ways to ask."""
        for kind in (torch.optim.Optimizer, torch.nn.Module):
            kind.zero_grad = self._freeing(kind.zero_grad)  # type: ignore[method-assign]
        self.note = "zero_grad already frees gradients, PyTorch's default"

    def _freeing(self, original: Any) -> Any:
        @functools.wraps(original)
        def zero_grad(owner: Any, set_to_none: bool = True) -> None:
            if not set_to_none:
                self.applied += 1
                self.note = None
            original(owner, set_to_none=True)

        return zero_grad


LEVER = SetToNone
