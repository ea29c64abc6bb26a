"""No graph while the model evaluates."""

from __future__ import annotations

from typing import Any

import torch

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Backward, Job


class NoGradEval(Lever):
    """`torch.no_grad()` around a model that is in evaluation mode.

    Needs: a script that calls `model.eval()` but does not turn gradients off around the calls.
    Changes: no activations are saved for a backward pass that never comes. Results: exact.

    Gradients through a model in evaluation mode are kept where they are visible: inputs that need
    them, and models that train in evaluation mode (those that were never in training mode).
    If the script asks for one later, oomph stops it, because the gradient is missing.
    """

    name = "no_grad_eval"

    def __init__(self) -> None:
        """No parameters."""
        super().__init__()
        self.note = "no model was called in evaluation mode with gradients on"
        self.context: Any = None
        self.pending: set[int] = set()
        """Models whose last call was an evaluation."""

    def install(self, job: Job) -> None:
        """Around each call of an outermost module."""
        self.job = job
        self.trained: set[int] = set()
        job.on_enter.append(self._enter)
        job.on_leave.append(self._leave)
        job.on_backward.append(self._backward)
        job.on_optimizer.append(self._optimizer)

    def _enter(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        if module.training:
            if torch.is_grad_enabled():
                self.trained.add(id(module))
            self.pending.discard(id(module))
            return
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return
        if not any(p.requires_grad for p in module.parameters()):
            return
        if any(t.requires_grad for t in _tensors((args, kwargs))):
            self.add_note("skipped an evaluation with inputs that need gradients")
            return
        if id(module) not in self.trained and self._optimized(module):
            # It may be trained in this mode, in which `from_pretrained` returns models.
            return
        if self.applied == 0:
            self.note = None
        self.applied += 1
        self.pending.add(id(module))
        self.context = torch.no_grad()
        self.context.__enter__()

    def _leave(self, module: torch.nn.Module, output: Any) -> None:
        if self.context is not None:
            self.context.__exit__(None, None, None)
            self.context = None

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Another training begins: earlier evaluations are not part of its losses."""
        self.pending.clear()

    def _optimized(self, module: torch.nn.Module) -> bool:
        mine = {id(p) for p in module.parameters()}
        return any(
            id(p) in mine for o in self.job.optimizers for g in o.param_groups for p in g["params"]
        )

    def _backward(self, call: Backward) -> None:
        """A backward pass while a model's latest call was an evaluation may be through that call."""
        if not self.pending:
            return
        lost = [m for m in self.job.models if id(m) in self.pending and self._optimized(m)]
        if lost or not any(t.requires_grad for t in call.tensors):
            name = type(lost[0]).__name__ if lost else "a model"
            raise self.refuse(
                f"it calls backward after {name} was called in evaluation mode, and may need the gradients of "
                "that call. Call model.train() for training (layers can be frozen one by one), or choose "
                "a plan without this lever: oomph fit --forbid no_grad_eval",
                manually=True,
            )


def _tensors(value: Any, depth: int = 0):
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4 and isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, depth + 1)
    elif depth < 4 and isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, depth + 1)


LEVER = NoGradEval
