"""Saves what a step may change before the optimizer, and restores it for a retry.

Random states, buffers (BatchNorm's statistics), the loss scaler and gradients. Parameters and
optimizer state change in `optimizer.step` only: see `optimizer_guard.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from oomph._older_python import zip
from oomph._random_states import RandomStates
from oomph._training.errors import is_out_of_memory


class Buffers:
    """A second copy of a model's buffers, kept on their devices: on the CPU where those are full."""

    def __init__(self, model: nn.Module) -> None:
        """Make no copy yet."""
        self._model = model
        self._owners: list[tuple[nn.Module, str, torch.Tensor]] = []
        self._originals: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []

    @torch.no_grad()
    def save(self) -> None:
        """Copy all buffers. Allocates only if the buffers have changed since the last time."""
        owners = [
            (module, name, buffer)
            for module in self._model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        seen: dict[int, torch.Tensor] = {id(buffer): buffer for _, _, buffer in owners}
        originals = list(seen.values())
        same = len(originals) == len(self._originals) and all(
            a is b for a, b in zip(originals, self._originals, strict=True)
        )
        if same:
            if originals:
                torch._foreach_copy_(self._copies, originals)
        else:
            self._copies = [_copy(buffer) for buffer in originals]
        self._owners, self._originals = owners, originals

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the saved contents into the same tensors, and the tensors into their modules."""
        for module, name, buffer in self._owners:
            module._buffers[name] = buffer
        for original, copy in zip(self._originals, self._copies, strict=True):
            original.copy_(copy)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    try:
        return tensor.detach().clone()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    return tensor.detach().cpu()


class ScalerState:
    """A `GradScaler`'s scale, growth counter and per-optimizer stages."""

    def __init__(self, scaler: Any) -> None:
        """Save without waiting for the device."""
        self._scaler = scaler
        self._tensors = {
            name: (tensor, tensor.clone() if tensor is not None else None)
            for name in ("_scale", "_growth_tracker")
            for tensor in [getattr(scaler, name, None)]
        }

    def restore(self) -> None:
        """Back to the saved scale, with no optimizer unscaled or stepped."""
        for name, (tensor, copy) in self._tensors.items():
            if tensor is not None:
                tensor.copy_(copy)
            # None before the first use: an error may have come between one and the other.
            setattr(self._scaler, name, tensor)
        self._scaler._per_optimizer_states.clear()


class StepState:
    """The whole state for one step. Gradients are cleared at the start and by `restore`."""

    def __init__(
        self,
        model: nn.Module,
        devices: Sequence[torch.device],
        scaler: Any = None,
        generators: Sequence[Any] = (),
    ) -> None:
        """Remember where to look; `save` saves."""
        self._model = model
        self._devices = devices
        self._scaler = scaler
        self._generators = generators
        self._buffers = Buffers(model)
        self._random: RandomStates | None = None
        self._scale: ScalerState | None = None

    def save(self) -> None:
        """Save everything as it is now."""
        self._random = RandomStates(self._devices, self._generators)
        self._buffers.save()
        self._scale = ScalerState(self._scaler) if self._scaler is not None else None

    def restore(self) -> None:
        """Go back to what was saved; gradients are cleared."""
        self._model.zero_grad(set_to_none=True)
        if self._random is not None:
            self._random.restore()
            self._buffers.restore()
        if self._scale is not None:
            self._scale.restore()
