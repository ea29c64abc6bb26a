"""Keeps weights that are trained in pinned host memory, and on the GPU only where they are needed."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from oomph._older_python import zip
from oomph.levers._shared.job import Job
from oomph.levers._shared.parameter_steps import LEAST_GRADIENT
from oomph.levers._shared.streamed_weights import Block, Stage, StreamedWeights, notes
from oomph.levers._shared.streams import BothWays

BETWEEN = ("TBackward0", "TransposeBackward0", "ViewBackward0", "UnsafeViewBackward0")
"""What autograd puts between a weight's copy in another precision and a view of it that an operator saves."""


class StreamTrained(StreamedWeights):
    """Weights are copied to the GPU ahead of their module's forward, again ahead of its backward, and for their step.

    Needs: gradients that wait in host memory by the same plan, with all that this needs, and host memory for the weights, up to twice (PyTorch
    rounds pinned memory to powers of two). Changes: the GPU holds the weights of two of the modules, whatever their number, and in
    the step those that step. Autograd keeps a note in place of each weight, or copy of one in another precision, that it would save.
    Results: the same to rounding. Its time is the weights' bytes over the link's bandwidth, three times there and once back, minus
    what computation hides.

    The script finds these weights on the CPU between its calls. Buffers, weights of less than 256 KiB, of several modules or with
    hooks, and the model's first parameter stay on the GPU. Refused by name: recurrent layers, modules that are compiled.
    """

    name = "stream_trained"
    trains = True

    def __init__(self, modules: list[str]) -> None:
        """`modules`: names as in the plan file."""
        super().__init__(modules)
        self._streams = BothWays()
        self._places: Any = WeakTensorKeyDictionary()
        """Of each weight the module that it is streamed with, and its number there."""
        self._coming: dict[int, tuple[torch.Tensor, Any]] = {}
        """Weights that step next, by `id`."""
        self._nothing: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def install(self, job: Job) -> None:
        """As there; the lever of the gradients asks for the weights that step."""
        super().install(job)
        self.job = job
        job.weights_elsewhere = self

    def _goes(self, kind: str, tensor: torch.Tensor, stays: set[int]) -> bool:
        trained = kind == "_parameters" and tensor.requires_grad and tensor.nbytes >= LEAST_GRADIENT
        alone = trained and self.job.gradients_elsewhere.waits_alone(tensor)
        return alone and super()._goes(kind, tensor, stays)

    def _take(self, root: torch.nn.Module, found: dict[str, torch.nn.Module]) -> None:
        if found and self.job.gradients_elsewhere is None:
            raise self.refuse("its gradients must wait in host memory, too, by the same plan")
        super()._take(root, found)
        for module in found.values():
            if (block := self.blocks.get(module)) is not None:
                for number, weight in enumerate(block.home):
                    self._places[weight] = block, number

    # ---- forward and backward ----

    def _saving(self, stage: Stage, block: Block, slot: int) -> contextlib.AbstractContextManager:
        if not torch.is_grad_enabled():
            return contextlib.nullcontext()
        return self._recorded(stage, block, slot)

    @contextlib.contextmanager
    def _recorded(self, stage: Stage, block: Block, slot: int) -> Iterator[None]:
        """The module computes with leaves of their own, whose gradients are those of the weights."""
        leaves = []
        for home, view in zip(block.home, block.views(stage.slots[slot]), strict=True):
            leaf = view.detach().requires_grad_(home.requires_grad)
            if home.requires_grad:
                leaf.register_post_accumulate_grad_hook(functools.partial(self._gradient, home))
            leaves.append(leaf)
        block.put(leaves)
        numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
        try:
            with notes(self, stage, block, slot, functools.partial(_cast_of, numbers)):
                yield
        finally:
            if torch.is_autocast_enabled():
                torch.clear_autocast_cache()  # it would keep the weights' copies until the forward pass ends
            for leaf in leaves:
                # The graph keeps the leaf, but need not keep its memory.
                leaf.data = self._empty(leaf)

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor of the same kind without memory of its own."""
        key = like.device, like.dtype
        if key not in self._nothing:
            self._nothing[key] = torch.empty(1, dtype=like.dtype, device=like.device)
        return self._nothing[key].expand(like.shape)

    def _gradient(self, weight: torch.Tensor, leaf: torch.Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        if gradient is not None:
            self.job.gradients_elsewhere.take(weight, gradient)

    # ---- the step ----

    def fetch(self, weights: list[torch.Tensor]) -> None:
        """Begin to copy those of some weights that are streamed, and that step next, to the GPU."""
        mine = [one for one in weights if one in self._places and id(one) not in self._coming]
        if not mine or self.stage is None:
            return
        found, done = self._streams.bring([one.data for one in mine], self.stage.device)
        for weight, here in zip(mine, found, strict=True):
            self._coming[id(weight)] = here, done

    def come(self, weights: list[torch.Tensor]) -> None:
        """Let them be on the GPU."""
        self.fetch(weights)
        for weight in weights:
            if (found := self._coming.pop(id(weight), None)) is not None:
                here, done = found
                torch.cuda.current_stream(here.device).wait_event(done)
                weight.data = here

    def leave(self, weights: list[torch.Tensor]) -> None:
        """Copy weights that have stepped back to the host."""
        mine = [weight for weight in weights if weight in self._places and weight.is_cuda]
        if not mine:
            return
        device = mine[0].device
        stream = self._streams(device)[1]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for weight in mine:
                block, number = self._places[weight]
                here, weight.data = weight.data, block.view(block.flat, number)
                weight.data.copy_(here, non_blocking=True)
                here.record_stream(stream)
                block.written += 1

    def settle(self) -> None:
        """Wait until the host has all weights: the script may read them, and a module may be called."""
        self._streams.complete()


def _cast_of(numbers: dict[int, int], tensor: torch.Tensor) -> int | None:
    """Of which leaf, by its number, `tensor` is a copy in another precision, or a view of one."""
    function = tensor.grad_fn
    while function is not None and function.name() in BETWEEN:
        function = function.next_functions[0][0]
    if function is None or function.name() != "ToCopyBackward0":
        return None
    leaf = getattr(function.next_functions[0][0], "variable", None)
    return numbers.get(id(leaf))


LEVER = StreamTrained
