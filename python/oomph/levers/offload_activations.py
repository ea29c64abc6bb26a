"""Offloads activations of chosen modules to pinned host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oomph.levers._shared import host_copies
from oomph.levers._shared.base import Lever
from oomph.levers._shared.compiled import refuse_compiled, refuse_in_compiled
from oomph.levers._shared.forward import NamedModules, around_forward
from oomph.levers._shared.job import Job
from oomph.levers._shared.recomputation import without_graph


class OffloadActivations(Lever):
    """Copies what modules save for the backward pass to pinned host memory.

    Needs: a CUDA GPU and as much host memory, up to twice (PyTorch rounds pinned memory to powers of
    two). Changes: activations are copied on a separate stream while the forward pass continues, and
    prefetched for the backward pass. Results: bitwise the same. It costs no time as long as the copies take
    no longer than the modules.

    Parameters, buffers and small tensors stay. A storage that is saved several times, or as several
    views, is copied once. Inert without gradients; modules that are compiled are refused.
    """

    name = "offload_activations"

    def __init__(self, modules: list[str]) -> None:
        """`modules`: names as in the plan file."""
        super().__init__()
        if not modules:
            raise self.refuse("it names no modules")
        self.places = NamedModules(modules)
        self.used: set[str] = set()
        self.called: set[str] = set()
        self.copies = host_copies.HostCopies(self.name)
        self.last: int | None = None
        """The module whose forward comes last among the chosen, as of the last pass."""
        self.latest: int | None = None

    def install(self, job: Job) -> None:
        """Wrap the modules when their model is called first."""
        job.on_model.append(self._model)
        job.on_enter.append(self._enter)
        job.on_leave.append(self._leave)

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        for name, module in self.places.take(named).items():
            refuse_compiled(self, name, named)
            self.handles.append(around_forward(module, self._around(name), self.order))

    def _enter(self, root: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        self.copies.keep(root)

    def _leave(self, root: torch.nn.Module, output: Any) -> None:
        self.copies.settle()
        self.last = self.latest

    def _around(self, name: str) -> Any:
        def around(
            module: torch.nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
        ) -> Any:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            if torch.compiler.is_compiling():
                refuse_in_compiled(self, name)
            self.called.add(name)

            def pack(tensor: torch.Tensor) -> Any:
                if not self.copies.leaves(tensor):
                    return without_graph(tensor)
                self.used.add(name)
                return self.copies.pack(tensor)

            with torch.autograd.graph.saved_tensors_hooks(pack, self.copies.unpack):
                output = forward(*args, **kwargs)
            self.latest = id(module)
            if self.last == self.latest:
                # The next operation (a head, a loss) is often the peak: release everything.
                self.copies.settle()
            return output

        return around

    def finish(self) -> None:
        """Count the modules with offloaded tensors."""
        self.applied = len(self.used)
        if problem := self.places.problem():
            self.add_note(problem)
        if not self.called and not self.places.missing:
            self.add_note(
                "the modules were never called with gradients, so they saved nothing anyway"
            )
        elif self.called - self.used:
            idle = sorted(self.called - self.used)
            self.add_note(
                f"{len(idle)} of the modules saved nothing of {host_copies.SMALLEST >> 10} KiB or more on a GPU: "
                f"{', '.join(idle[:3])}"
            )


LEVER = OffloadActivations
