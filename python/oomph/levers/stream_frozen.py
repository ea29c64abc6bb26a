"""Keeps frozen weights of chosen modules in pinned host memory while the job trains what is around or inside of them."""

from __future__ import annotations

import contextlib
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
    frozen = True

    def _move(self, root: torch.nn.Module, device: torch.device) -> None:
        if any(p.requires_grad for p in root.parameters()):
            super()._move(root, device)

    def _saving(self, stage: Stage, block: Block, slot: int) -> contextlib.AbstractContextManager:
        if any(tensor.requires_grad for tensor in block.home):
            why = f"weights of {block.name} that were frozen are trained now"
            raise self.refuse(why, modules=[block.name])
        if not torch.is_grad_enabled():
            return contextlib.nullcontext()
        top = torch_features.find("saved_tensor_hooks_top")
        outer = top(False) if top is not None else None
        if top is None and has_saved_tensor_hooks():
            why = f"{block.name} is checkpointed or offloaded, beside which it needs torch 2.8"
            raise self.refuse(why, modules=[block.name])
        begin, version = stage.slots[slot].data_ptr(), stage.versions[slot]

        def pack(tensor: torch.Tensor) -> Any:
            if (
                type(tensor) is torch.Tensor
                and tensor.layout is torch.strided
                and base(tensor) == begin
            ):
                place = tensor.storage_offset(), tensor.shape, tensor.stride()
                return _Weight(block, version, tensor.dtype, place)
            return without_graph(tensor) if outer is None else outer[0](tensor)

        def unpack(kept: Any) -> torch.Tensor:
            if type(kept) is not _Weight:
                return kept if outer is None else outer[1](kept)
            slot = stage.hold(kept.block)
            if stage.versions[slot] != kept.version:
                raise failure(
                    self.name,
                    f"frozen weights of {block.name} were changed before the backward pass that needs them",
                )
            stage.prefetch(kept.block)
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


LEVER = StreamFrozen
