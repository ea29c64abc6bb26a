"""Keeps frozen weights of chosen modules in pinned host memory while the job trains what is around or inside of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from oomph import _torch_features as torch_features
from oomph.levers._shared.base import failure
from oomph.levers._shared.host_copies import base
from oomph.levers._shared.recomputation import has_saved_tensor_hooks, without_graph
from oomph.levers._shared.streamed_weights import Block, Stage, StreamedWeights


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


def notes(
    lever: StreamedWeights,
    stage: Stage,
    block: Block,
    slot: int,
    cast: Callable[[torch.Tensor], int | None],
) -> contextlib.AbstractContextManager:
    """Around the forward of `block` with gradients: autograd keeps a note in the place of each weight in this slot. Of a tensor that
    is none `cast` tells of which weight, by its number, it is a copy in another precision."""
    top = torch_features.find("saved_tensor_hooks_top")
    outer = top(False) if top is not None else None
    if top is None and has_saved_tensor_hooks():
        why = f"{block.name} is checkpointed or offloaded, beside which it needs torch 2.8"
        raise lever.refuse(why, modules=[block.name])
    begin, version = stage.slots[slot].data_ptr(), stage.versions[slot]

    def pack(tensor: torch.Tensor) -> Any:
        if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
            place = tensor.storage_offset(), tensor.shape, tensor.stride()
            if base(tensor) == begin:
                return _Weight(block, version, tensor.dtype, place)
            if (found := cast(tensor)) is not None:
                return _Weight(block, version, tensor.dtype, place, found)
        return without_graph(tensor) if outer is None else outer[0](tensor)

    def unpack(kept: Any) -> torch.Tensor:
        if type(kept) is not _Weight:
            return kept if outer is None else outer[1](kept)
        slot = stage.hold(kept.block)
        if stage.versions[slot] != kept.version:
            raise failure(
                lever.name,
                f"weights of {block.name} were changed before the backward pass that needs them",
            )
        stage.prefetch(kept.block)
        if kept.number is not None:
            with torch.no_grad():
                weight = kept.block.view(stage.slots[slot], kept.number)
                offset, shape, strides = kept.place
                return weight.to(kept.dtype).as_strided(shape, strides, offset)
        like = torch.empty(0, dtype=kept.dtype, device=stage.device)
        return like.set_(stage.slots[slot].untyped_storage(), *kept.place)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


class _Weight(NamedTuple):
    """What autograd keeps in place of a weight."""

    block: Block
    version: tuple[int, ...]
    dtype: torch.dtype
    place: tuple[Any, ...]
    """Offset, shape and strides."""
    number: int | None = None
    """Which of the module's weights is cast to that type; None: it is as it is."""


LEVER = StreamFrozen
