"""Passes of a script: calls of its models, generations, calls of what is no module of PyTorch's."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch

from oomph._recorder.facts import Facts
from oomph._recorder.marks import Marks
from oomph._recorder.progress import BACKWARD, BETWEEN, FORWARD, INFERENCE, Progress
from oomph._recorder.updates import Updates


class Passes:
    """Sees passes begin and end, and counts those of a job that infers."""

    def __init__(self, progress: Progress, facts: Facts, marks: Marks, updates: Updates) -> None:
        """Nothing has run yet."""
        self._progress, self._facts, self._marks = progress, facts, marks
        self._updates = updates
        self._with_graph = False
        """Whether a pass with a graph has ended, of which a backward pass may yet come."""
        self._generating = 0

    def forget(self) -> None:
        """A part of the script begins."""
        self._with_graph = False
        self._generating = 0
        self._facts.backwards = self._facts.graph = 0

    def begin(self, model: torch.nn.Module, args: tuple) -> None:
        """An outermost module is called."""
        progress = self._progress
        progress.seen_forward = True
        if self._updates.waits and torch.is_grad_enabled():
            self._updates.goes_forward()
        if self._with_graph:
            # Another pass, and none went back: it was one without an optimizer.
            self._with_graph = False
            if not self._facts.backwards:
                progress.end_pass()
        self._facts.forward(model)
        progress.begin_pass(FORWARD)
        progress.say(FORWARD)
        self._marks.inputs(args)

    def end(self, args: tuple, kwargs: dict, output: Any) -> None:
        """An outermost module returns; `output` is None where it raised."""
        self._facts.called(args, kwargs, output)
        self._marks.given(kwargs)
        if output is None:
            return
        progress = self._progress
        progress.forwards += 1
        if progress.trains and torch.is_grad_enabled():
            progress.say(BACKWARD)
        if progress.trains or self._generating:
            return
        if not torch.is_grad_enabled():
            progress.end_pass()
        elif not self._facts.backwards:
            self._facts.graph += 1
            self._with_graph = True

    def end_outside(self) -> None:
        """A pass of something other than a PyTorch module is over."""
        if not self._progress.running and not self._progress.trains:
            self._progress.begin_pass(INFERENCE)
            self._progress.say(INFERENCE)
            self._progress.end_pass()

    def count_alone(self, models: Iterable[torch.nn.Module]) -> list[Any]:
        """Count the passes of a job that infers with nothing but a hook on each of `models`; returns the hooks."""

        def ended(*_: Any) -> None:
            if not self._generating and not self._progress.trains:
                self._progress.end_pass()

        return [model.register_forward_hook(ended) for model in models]

    def follow(self, models: Iterable[torch.nn.Module]) -> list[Any]:
        """Note in the black box when passes of `models` begin and end, and nothing else; returns the hooks."""
        progress = self._progress

        def begins(*_: Any) -> None:
            progress.begin_pass(FORWARD if torch.is_grad_enabled() else INFERENCE)

        def ends(*_: Any) -> None:
            progress.enter(BACKWARD if torch.is_grad_enabled() else BETWEEN)

        hooks = []
        for model in models:
            if not isinstance(model, torch.jit.ScriptModule):
                hooks += [
                    model.register_forward_pre_hook(begins),
                    model.register_forward_hook(ends),
                ]
        return hooks

    def finish(self) -> None:
        """The script has ended: no backward pass comes any more."""
        if self._with_graph and not self._facts.backwards:
            self._progress.inferences += 1

    def watch_generation(self, module: Any) -> None:
        """The tokens of one generation (of `transformers.generation.utils`) are one pass."""
        original = module.GenerationMixin.generate

        @functools.wraps(original)
        def generate(*args: Any, **kwargs: Any) -> Any:
            self._generating += 1
            try:
                result = original(*args, **kwargs)
            finally:
                self._generating -= 1
            if not self._generating and not self._progress.trains:
                self._progress.end_pass()
            return result

        module.GenerationMixin.generate = generate
