"""Keeps frozen weights of chosen modules in pinned host memory while the job trains what is around or inside of them."""

from __future__ import annotations

import contextlib

import torch

from oomph.levers._shared.streamed_weights import Block, Stage, StreamedWeights, notes


class StreamFrozen(StreamedWeights):
    """Parameters without gradients are copied to the GPU ahead of their module's forward, and again ahead of its backward.

    Needs: a job that trains, and host memory for the weights, up to twice (PyTorch rounds pinned memory to powers of
    two). Changes: of what is frozen in the modules the GPU holds that of two, whatever their number. Autograd keeps a note
    in place of each weight that it would save. What is trained inside of a module (an adapter) stays on the GPU. Results:
    bitwise the same. Its time is the weights' bytes over the link's bandwidth, in the forward and in the backward pass,
    minus what computation hides.

    A model of which nothing is trained is taken at its first call only: it may get its adapters after it has moved to the GPU.
    Buffers, small tensors, weights that other modules use too and the model's first parameter stay. Refused by name: weights
    that are trained later, recurrent layers, modules that are compiled.
    """

    name = "stream_frozen"
    trains = True

    def _move(self, root: torch.nn.Module, device: torch.device) -> None:
        if any(p.requires_grad for p in root.parameters()):
            super()._move(root, device)

    def _goes(self, kind: str, tensor: torch.Tensor, stays: set[int]) -> bool:
        mine = kind == "_parameters" and not tensor.requires_grad
        return mine and super()._goes(kind, tensor, stays)

    def _saving(self, stage: Stage, block: Block, slot: int) -> contextlib.AbstractContextManager:
        if any(tensor.requires_grad for tensor in block.home):
            why = f"weights of {block.name} that were frozen are trained now"
            raise self.refuse(why, modules=[block.name])
        if not torch.is_grad_enabled():
            return contextlib.nullcontext()
        return notes(self, stage, block, slot, lambda tensor: None)


LEVER = StreamFrozen
