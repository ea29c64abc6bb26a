"""A job made smaller or larger, to see what that would need: `oomph fit` asks for it, never a plan.

What the script's data loaders yield is cut or repeated to another batch size or length, and the
repeated blocks of its models are cut short. Results mean nothing then; memory does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.utils.data import dataloader


class Variant:
    """How the job differs; `None` leaves a size as it is."""

    def __init__(
        self, batch: int | None = None, length: int | None = None, layers: float | None = None
    ) -> None:
        """`batch` samples, sequences of `length`, and the part `layers` of the repeated blocks."""
        self.batch, self.length, self.layers = batch, length, layers
        self._known: set[int] = set()

    def install(self) -> None:
        """Torch has just been imported."""
        if self.batch is not None or self.length is not None:
            original = dataloader._BaseDataLoaderIter.__next__

            def resized(iterator: Any) -> Any:
                return self._resize(original(iterator))

            dataloader._BaseDataLoaderIter.__next__ = resized
        if self.layers is not None:
            nn_module.register_module_forward_pre_hook(self._cut)

    def _resize(self, batch: Any) -> Any:
        size = batch_size(batch)

        def resize(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.dim() == 0:
                return value
            if self.batch is not None and value.shape[0] == size:
                value = _resized(value, 0, self.batch)
            if self.length is not None and is_sequence(value):
                value = _resized(value, 1, self.length)
            return value

        return _mapped(resize, batch)

    def _cut(self, module: torch.nn.Module, args: Any) -> None:
        if id(module) in self._known:
            return
        for container in list(module.modules()):
            self._known.add(id(container))
            if not isinstance(container, (torch.nn.ModuleList, torch.nn.Sequential)):
                continue
            blocks = [child for child in container if next(child.children(), None) is not None]
            if len(blocks) < 2 or len(blocks) != len(container):
                continue
            kept = max(1, math.ceil(len(blocks) * self.layers))  # type: ignore[operator]
            for block in blocks[kept:]:
                for p in block.parameters():
                    p.data, p.grad = p.data.new_empty(0), None
            del container[kept:]


def batch_size(batch: Any) -> int:
    """The first dimension of the first tensor in `batch`; 0 without one."""
    sizes: list[int] = []

    def note(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            sizes.append(value.shape[0])
        return value

    _mapped(note, batch)
    return sizes[0] if sizes else 0


def is_sequence(value: Any) -> bool:
    """Whether `value` holds sequences of integers: tokens, masks, labels of tokens."""
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 2
        and not value.is_floating_point()
        and value.shape[1] > 1
    )


def sequence_length(batch: Any) -> int:
    """The length of the sequences in `batch`; 0 without any."""
    lengths: list[int] = []

    def note(value: Any) -> Any:
        if is_sequence(value):
            lengths.append(value.shape[1])
        return value

    _mapped(note, batch)
    return lengths[0] if lengths else 0


def _resized(value: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    index = torch.arange(size, device=value.device) % value.shape[dim]
    return value.index_select(dim, index)


def _mapped(function: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(function, item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(function, item) for item in value)
    if isinstance(value, dict):
        # A dictionary of a class of its own keeps it.
        changed = {key: _mapped(function, item) for key, item in value.items()}
        return changed if type(value) is dict else type(value)(changed)
    return value
