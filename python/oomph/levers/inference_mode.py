"""No graph in inference."""

from __future__ import annotations

from typing import Any

import torch

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Backward, Job


class InferenceMode(Lever):
    """`torch.inference_mode()` from the first call of a model on.

    Needs: a script that never calls `backward`. Changes: nothing is saved for a backward pass, so
    activations are freed as soon as they have been used. Results: exact. If the script calls `backward`
    later, oomph stops it, because the graph is missing.

    The mode stays on between calls, so the script can change a model's outputs in place.
    """

    name = "inference_mode"

    def __init__(self) -> None:
        """No parameters."""
        super().__init__()
        self.note = "no model was called with gradients on"
        self._contexts: list[Any] = []

    def install(self, job: Job) -> None:
        """Before each call of an outermost module."""
        job.on_enter.append(self._enter)
        job.on_backward.append(self._backward)

    def _enter(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        if torch.is_inference_mode_enabled() and self._contexts and not torch.is_grad_enabled():
            self.applied += 1
        elif torch.is_grad_enabled():
            # Also after the script left its own context, which turned gradients on again.
            context = torch.inference_mode()
            context.__enter__()
            self._contexts.append(context)
            self.applied += 1
            self.note = None

    def _backward(self, call: Backward) -> None:
        if self.applied:
            raise self.refuse(
                "it calls backward, which needs the graph. Plan for it as a training job: oomph fit "
                "without --inference",
                manually=True,
            )


LEVER = InferenceMode
