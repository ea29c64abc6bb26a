"""The optimizer steps inside the backward pass, a few parameters at a time."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

import torch

from oomph.levers._shared.base import CannotApply, Lever
from oomph.levers._shared.job import Backward, Clipped, Job, nested
from oomph.levers._shared.parameter_steps import (
    FEWEST,
    NOT_CLEARED,
    OnGradient,
    cleared,
    only_per_parameter,
    step_only,
)


class StepInBackward(Lever):
    """Updates each parameter as soon as its gradient is complete, and frees the gradient. Small ones wait until they are 4 MiB
    together: a step takes the host as long for one parameter as for ten.

    Needs: one optimizer whose update of a parameter depends on that parameter alone, and one
    backward pass per step. Changes: gradients never exist all at once. Results: the same. The script
    sees no gradients after `backward()`.

    Refused by name: clipping and gradient scaling (they need all gradients before the step),
    accumulation, several optimizers, L-BFGS, distributed training, gradients that no `zero_grad` clears.
    """

    name = "step_in_backward"

    def __init__(self) -> None:
        """It has no parameters."""
        super().__init__()
        self.optimizer: weakref.ref[torch.optim.Optimizer] | None = None
        self.done: set[int] = set()
        """Parameters that have been updated since the script's last step."""
        self.spent: set[int] = set()
        """Those updated before it, whose gradients the script has not cleared since."""
        self._waiting: list[torch.Tensor] = []
        """Parameters that step next, together, of so many"""
        self._bytes = 0
        """bytes."""

    def install(self, job: Job) -> None:
        """Hook the parameters when the optimizer has them."""
        self.job = job
        self.hooks = OnGradient(self._update)
        job.on_optimizer.append(self._optimizer)
        job.on_backward.append(self._before_backward)
        job.after_backward.append(self._step_waiting)
        job.around_step.append(self._step)
        job.around_zero_grad.append(self._zero_grad)
        job.around_clip.append(self._clip)
        job.around_scaler.append(self._scaler)

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if self.optimizer is not None and self.optimizer() is not None:
            # An earlier training's optimizer may be in a reference cycle.
            gc.collect()
        if self.optimizer is not None and self.optimizer() is not None:
            raise self.refuse(
                "it has several optimizers, and it is unclear which one a backward pass belongs to",
                manually=True,
            )
        only_per_parameter(self, optimizer, steps=False)
        self.optimizer = weakref.ref(optimizer)
        self.hooks.of(optimizer)

    def _update(self, p: torch.Tensor) -> None:
        optimizer = self.optimizer() if self.optimizer is not None else None
        if optimizer is None:
            return
        if id(p) in self.done:
            raise self._accumulates()
        if id(p) in self.spent:
            raise self.refuse(NOT_CLEARED)
        if not self.done:
            only_per_parameter(self, optimizer)
        self.done.add(id(p))
        self._waiting.append(p)
        self._bytes += p.nbytes
        if self._bytes >= FEWEST:
            self._step_waiting()

    def _step_waiting(self) -> None:
        some, self._waiting, self._bytes = self._waiting, [], 0
        optimizer = self.optimizer() if self.optimizer is not None else None
        if optimizer is None or not some:
            return
        early = functools.partial(step_only, optimizer, {id(p) for p in some})
        nested(self.job.around_early_step, optimizer, some, early)
        for p in some:
            p.grad = None
        self.applied += len(some)

    def _accumulates(self) -> CannotApply:
        return self.refuse(
            "it accumulates gradients over several backward passes before a step", manually=True
        )

    def _before_backward(self, call: Backward) -> None:
        if self.done:
            raise self._accumulates()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise self.refuse("gradients are reduced over several processes before a step")
        optimizer = self.optimizer() if self.optimizer is not None else None
        if optimizer is not None and any(
            p.grad is not None for group in optimizer.param_groups for p in group["params"]
        ):
            raise self._accumulates()

    def _step(self, optimizer: torch.optim.Optimizer, proceed: Any) -> Any:
        self._step_waiting()  # of a backward pass that nobody watches
        try:
            return proceed()  # no gradient is left, so that it changes nothing; its hooks run
        finally:  # the recorder ends a run here that has made its steps
            self.spent |= self.done
            self.done.clear()

    def _zero_grad(self, target: Any, proceed: Any) -> Any:
        self.spent.difference_update(map(id, cleared(target)))
        return proceed()

    def _clip(self, parameters: Clipped, proceed: Any) -> Any:
        if parameters.limit == float("inf"):
            self.add_note(
                "the script sees a gradient norm of zero, because the gradients are already freed"
            )
        elif any(id(p) in self.hooks.hooked for p in parameters):
            raise self.refuse(
                "it clips gradients, which needs all of them before the step. Without clipping (in "
                "Hugging Face's Trainer: max_grad_norm=0; in Lightning: gradient_clip_val=None) it "
                "could be applied",
                manually=True,
            )
        return proceed()

    def _scaler(self, method: str, scaler: Any, proceed: Any) -> Any:
        if scaler.is_enabled():
            raise self.refuse(
                "it scales gradients (GradScaler), which skips a step if any of them overflows; "
                "bf16 needs no scaling",
                manually=True,
            )
        return proceed()

    def finish(self) -> None:
        """Report why nothing was updated."""
        if not self.applied:
            self.add_note("no parameter of an optimizer got a gradient")
        elif self.done:
            self.add_note("no step of the script followed the last backward pass")


LEVER = StepInBackward
