"""Measures what the blocks of a model save for the backward pass, during an attempt of a step."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from oomph._training.memory_model import GpuMemory
from oomph.levers._shared.forward import ForwardHandle, around_forward

ORDER = -1
"""Outside every lever, whose places begin at 0: what they keep off the GPU does not count."""


_Saved = tuple[torch.Tensor, int]
"""What autograd keeps of a tensor, and its version."""


class BlockSurvey:
    """Bytes and seconds of each block's forward, as far as a pass gets.

    A context manager around one attempt of a step; the attempt may fail. Counts storages that
    autograd saves, each once, without parameters and buffers. Synchronizes after each block.
    """

    def __init__(
        self, model: nn.Module, blocks: dict[str, nn.Module], gpu_memory: GpuMemory
    ) -> None:
        """`blocks`: modules by name, none inside of another."""
        self._model, self._blocks, self._gpu_memory = model, blocks, gpu_memory
        self._handles: list[ForwardHandle] = []
        self._boundaries: set[int] = set()
        self.reached: set[str] = set()
        """Blocks whose forward came to its end in the latest pass."""
        self.inside: dict[str, int] = {}
        """Bytes that only the block itself needs."""
        self.inputs: dict[str, int] = {}
        """Bytes of the block's arguments that it saves."""
        self.seconds: dict[str, float] = {}
        """Of the block's forward."""
        self.outside = 0
        """Bytes that the model saves outside of blocks."""
        self.root_called = False
        """Whether the model itself is called: a loss function may call its parts."""

    def begin_pass(self) -> None:
        """Another forward pass of the model begins: what the previous one saved is freed by now."""
        self.reached.clear()
        self._boundaries.clear()

    def __enter__(self) -> BlockSurvey:
        """Begin to count."""
        self._fixed = {_address(t) for t in (*self._model.parameters(), *self._model.buffers())}
        self._handles = [around_forward(self._model, self._root, ORDER - 1)]
        for name, module in self._blocks.items():
            self._handles.append(around_forward(module, self._around(name), ORDER))
        return self

    def __exit__(self, *error: Any) -> None:
        """Count no more."""
        for handle in self._handles:
            handle.remove()

    def _root(
        self, module: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.root_called = True
        seen: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> _Saved:
            return self._save(tensor, seen)

        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
                return forward(*args, **kwargs)
        finally:
            own = [size for address, size in seen.items() if address not in self._boundaries]
            self.outside = max(self.outside, sum(own))

    def _around(self, name: str) -> Any:
        def around(
            module: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> Any:
            seen: dict[int, int] = {}

            def pack(tensor: torch.Tensor) -> _Saved:
                return self._save(tensor, seen)

            self._gpu_memory.synchronize()
            began = time.perf_counter()
            with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
                output = forward(*args, **kwargs)
            self._gpu_memory.synchronize()
            seconds = time.perf_counter() - began
            given = _addresses((args, kwargs))
            self._boundaries |= given
            # A result stays anyway: it is what comes after the block that needs it.
            stays = given | _addresses(output)
            inside = sum(size for address, size in seen.items() if address not in stays)
            inputs = sum(size for address, size in seen.items() if address in given)
            if name in self.reached:  # called several times, it keeps all that it saves
                inside += self.inside[name]
                inputs += self.inputs[name]
                seconds += self.seconds[name]
            self.inside[name], self.inputs[name], self.seconds[name] = inside, inputs, seconds
            self.reached.add(name)
            return output

        return around

    def _save(self, tensor: torch.Tensor, seen: dict[int, int]) -> _Saved:
        if tensor.layout is torch.strided and (address := _address(tensor)) not in self._fixed:
            seen[address] = tensor.untyped_storage().nbytes()
        # Detached: a result that its own node keeps would keep that node alive.
        return tensor.detach(), tensor._version


def _unpack(saved: _Saved) -> torch.Tensor:
    tensor, version = saved
    if tensor._version != version:  # as autograd checks where there are no hooks
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a {tensor.dtype} tensor of shape {list(tensor.shape)}"
        )
    return tensor


def _address(tensor: torch.Tensor) -> int:
    """Where the tensor's storage begins; 0 for tensors without one."""
    if type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout is not torch.strided:
        return 0
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size()


def _addresses(value: Any) -> set[int]:
    leaves = torch.utils._pytree.tree_leaves(value)
    return {_address(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
