"""Steps of the script's optimizers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import optimizer as optim

from oomph._recorder.marks import Marks
from oomph._recorder.outermost_models import OutermostModels
from oomph._recorder.progress import MARKED_STEPS, OPTIMIZER, Moment, Progress
from oomph._recorder.scopes import Scopes


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


class OptimizerSteps:
    """Sees optimizers step, and counts the steps of the main one.

    That is the last of those that the script has made, if each steps before one steps again: a step of the job ends with
    it, as in a GAN, where the graph of the generator outlives the discriminator's step. Else it is the one that steps
    most often at first.
    """

    def __init__(
        self, progress: Progress, scopes: Scopes, marks: Marks, models: OutermostModels
    ) -> None:
        """No optimizer is known yet."""
        self._progress, self._scopes = progress, scopes
        self._marks, self._models = marks, models
        self._main: int | None = None
        self._made: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: set[int] = set()
        """Which have stepped, until the main one is known."""
        self._first: Moment | None = None
        """Where the last of these did."""
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._twice: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = (
            weakref.WeakKeyDictionary()
        )
        """How often each has stepped, up to two: the first step makes its state, which the second one's pass has beside it."""

    def some_wait(self, steps: int = 2) -> bool:
        """Whether an optimizer that is there has not stepped so often yet, twice at most, nor have others for it: it may wrap one."""
        made = list(self._made)
        stepped = {
            id(p) for one in made if self._twice.get(one, 0) >= steps for p in _parameters(one)
        }
        return any(p.requires_grad and id(p) not in stepped for one in made for p in _parameters(one))  # fmt: skip

    def forget(self, models: OutermostModels) -> None:
        """A part of the script begins: it trains if an optimizer is there already."""
        self._models = models
        self._main = None
        self._stepped.clear()
        self._first = None
        self._known.clear()
        self._progress.trains = len(self._made) > 0

    def watch_construction(self, inference: bool) -> None:
        """A script that makes an optimizer trains: passes without gradients are not its steps.

        With `inference` it only infers all the same.
        """
        original = optim.Optimizer.__init__

        @functools.wraps(original)
        def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            self._progress.trains = not inference
            original(optimizer, *args, **kwargs)
            self._made.add(optimizer)
            self._marks.add_optimizer(optimizer)

        optim.Optimizer.__init__ = initialize  # type: ignore[method-assign]

    def watch(self) -> None:
        """Begin to watch steps."""
        optim.register_optimizer_step_pre_hook(self._before)
        optim.register_optimizer_step_post_hook(self._after)

    def _before(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> Any:
        if torch.compiler.is_compiling():
            return None  # within compiled code, hooks would be compiled, too
        if not self._progress.is_recorded:
            self._progress.enter(OPTIMIZER)
            return None
        self._progress.in_optimizer += 1
        self._marks.add_optimizer(optimizer)
        if self._progress.step < MARKED_STEPS or optimizer not in self._known:
            self._known.add(optimizer)
            self._models.optimized_by([optimizer])
        if not any(map(callable, (*args[1:], *kwargs.values()))):
            self._begin()
            return None
        # A closure makes the forward and the backward pass, which are no part of the step.
        return (
            tuple(map(self._outside_step, args)),
            {name: self._outside_step(value) for name, value in kwargs.items()},
        )

    def _outside_step(self, closure: Any) -> Any:
        """`closure` as it would run before the optimizer's step; what else a step is given stays."""
        if not callable(closure):
            return closure
        progress = self._progress

        @functools.wraps(closure)
        def run(*args: Any, **kwargs: Any) -> Any:
            within, progress.in_optimizer = progress.in_optimizer, 0
            try:
                result = closure(*args, **kwargs)
            finally:
                progress.in_optimizer = within
            self._begin()
            return result

        return run

    def _begin(self) -> None:
        """Gradients are complete, and the optimizer begins to use them."""
        progress = self._progress
        progress.say(OPTIMIZER)
        if progress.step < MARKED_STEPS:
            self._marks.sharded_parameters()
            self._marks.gradients()
        progress.boundary("optimizer", progress.step)

    def _after(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if torch.compiler.is_compiling():
            return
        progress = self._progress
        progress.in_optimizer = max(0, progress.in_optimizer - 1)
        progress.gradients += sum(p.grad is not None for p in _parameters(optimizer))
        if progress.is_recorded and progress.step < MARKED_STEPS:
            self._marks.optimizer_state()
        if self._main is None:
            again = id(optimizer) in self._stepped
            self._stepped.add(id(optimizer))
            if again or all(id(made) in self._stepped for made in self._made):
                self._main = id(optimizer)
                if again and self._first is not None:
                    progress.end_step(
                        self._first, logged=False
                    )  # its own first step ended one, too
            elif progress.is_recorded:
                self._first = progress.here()
        if (stepped := self._twice.get(optimizer, 0)) < 2:
            self._twice[optimizer] = stepped + 1
        if self._main == id(optimizer):
            self._scopes.forget_graph()
            progress.end_step()
        else:
            progress.end_waiting()
