"""Chosen modules that compute each row or sample by itself run some at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd

from oomph.levers._shared.autocast import Autocast
from oomph.levers._shared.base import Lever
from oomph.levers._shared.compiled import refuse_compiled, refuse_in_compiled
from oomph.levers._shared.forward import NamedModules, around_forward
from oomph.levers._shared.job import Job
from oomph.levers._shared.row_functions import InParts
from oomph.levers._shared.rows import why_not_by_rows


class ChunkedModules(Lever):
    """Runs modules on parts of their rows or samples, and each part again in the backward pass.

    Needs: modules that take one tensor, give one, and compute each row of it (…, features) by itself: MLPs, experts, norms, projections; or
    each sample (samples, …): stacks of convolutions. What they call on two and on three, before their first call, must show it. Changes: what is computed inside
    exists for one part at a time; their input is kept, and with gradients there is one more forward pass. Results: the
    same to rounding; gradients of weights are summed over the parts in 32 bits.

    Refused by name: what draws random numbers (dropout), mixes rows or samples (batch normalization), looks at their number or at values, keeps something
    of a call, has hooks inside, is compiled.
    """

    name = "chunked_modules"

    def __init__(self, modules: list[str], chunks: int) -> None:
        """`modules`: names as in the plan file; `chunks`: how many parts."""
        super().__init__()
        if not modules:
            raise self.refuse("it names no modules")
        if chunks < 2:
            raise self.refuse(f"chunks is {chunks}; at least 2 are needed")
        self.places, self.chunks = NamedModules(modules), chunks
        self.called: set[str] = set()
        self.parts: dict[str, int] = {}
        """The most rows or samples of a part with gradients, by module: what has no more without them runs whole."""
        self.known: set[tuple[Any, ...]] = set()
        """Kinds of calls that were found to compute each row by itself, or each sample."""

    def install(self, job: Job) -> None:
        """Wrap the modules when their model is called first."""
        job.on_model.append(self._model)

    def finish(self) -> None:
        """Count the modules that ran in parts."""
        self.applied = len(self.called)
        if problem := self.places.problem():
            self.add_note(problem)
        elif not self.called:
            self.add_note(
                f"the modules were never called with {2 * self.chunks} rows or more, or {self.chunks} samples"
            )

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        for name, module in self.places.take(named).items():
            refuse_compiled(self, name, named)
            around = functools.partial(self._around, name)
            self.handles.append(around_forward(module, around, self.order))

    def _around(
        self,
        name: str,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        args: tuple,
        kwargs: dict,
    ) -> Any:
        if torch.compiler.is_compiling():
            refuse_in_compiled(self, name)
        given = (*args, *kwargs.values())
        if len(given) != 1 or not isinstance(given[0], torch.Tensor) or given[0].dim() < 2:
            raise self._refuse(name, "is not called with one tensor of rows")
        x = given[0]
        # A convolution's rows are no rows of their own.
        by_samples = any(isinstance(part, _ConvNd) for part in module.modules())
        lead = (1,) * (0 if by_samples else x.dim() - 2)
        flat = x.flatten(0, 0 if by_samples else -2)
        if len(flat) < self.chunks * (1 if by_samples else 2):
            return forward(*args, **kwargs)
        chunks = self.chunks
        if torch.is_grad_enabled():
            self.parts[name] = max(self.parts.get(name, 0), -(-len(flat) // chunks))
        elif name in self.parts:
            chunks = -(-len(flat) // self.parts[name])
        if chunks == 1:
            return forward(*args, **kwargs)
        key = next(iter(kwargs), None)

        def call(part: torch.Tensor) -> Any:
            part = part.reshape(*lead, *part.shape)
            return forward(part) if key is None else forward(**{key: part})

        autocast = Autocast(x.device.type)
        kind = (name, module.training, x.dtype, x.shape[-1], x.dim(), autocast.dtype)
        if kind not in self.known:
            narrow = autocast.again(caches=False)
            with torch.inference_mode(False), torch.no_grad(), narrow:
                why = why_not_by_rows(module, call, flat.detach())
            if why:
                raise self._refuse(name, why)
            self.known.add(kind)
        self.called.add(name)
        weights = [p for p in module.parameters() if p.requires_grad]
        # A tied one is one tensor in several places.
        numbers = {id(p): number for number, p in enumerate(weights)}
        places = [
            (part._parameters, name, numbers[id(p)])
            for part in module.modules()
            for name, p in part._parameters.items()
            if id(p) in numbers
        ]

        def run(given: list[Any], part: slice) -> tuple[torch.Tensor]:
            # In the forward pass no casts are kept: they would have no graph.
            with autocast.again(None if torch.is_grad_enabled() else False):
                for parameters, name, number in places:
                    parameters[name] = given[1 + number]
                try:
                    y = call(given[0])
                finally:
                    for parameters, name, number in places:
                        parameters[name] = weights[number]
            return (y.flatten(0, len(lead)),)

        (found,) = InParts.apply(run, {0}, len(flat), chunks, flat, *weights)
        return found.unflatten(0, x.shape[: len(lead) + 1])

    def _refuse(self, name: str, why: str) -> BaseException:
        return self.refuse(f"{name} {why}. Leave it out of the plan", modules=[name])


LEVER = ChunkedModules
