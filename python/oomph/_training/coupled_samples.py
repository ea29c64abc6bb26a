"""Finds batches that must not be split: layers and losses that depend on several samples."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from oomph._random_states import RandomStates
from oomph._training.errors import is_out_of_memory

SAMPLES = 4
"""Samples used to check the loss."""


def coupled_layers(model: nn.Module) -> list[str]:
    """Layers whose output for a sample depends on the other samples: BatchNorm in training."""
    return [
        f"{name or type(module).__name__} ({type(module).__name__})"
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and not _per_sample(module)
        and (module.training or module.running_mean is None)
    ]


def _per_sample(module: nn.Module) -> bool:
    from torch.nn.modules.instancenorm import _InstanceNorm

    return isinstance(module, _InstanceNorm)


@torch.no_grad()
def loss_is_mean(
    model: nn.Module,
    loss: Callable[[Any], torch.Tensor],
    cut: Callable[[int, int], Any],
    weight: Callable[[Any], float],
    size: int,
    devices: list[torch.device],
    tolerance: float,
) -> str:
    """Whether the loss of a few samples is the weighted mean of their parts' losses.

    Checked in evaluation mode, so that dropout draws nothing. Returns "" if it is, or a sentence that
    describes the difference. Warns if the check is not possible. `cut(start, stop)` is a part of the
    batch of `size` samples. The caller restores random state and buffers.
    """
    count = min(SAMPLES, size)
    if count < 2:
        return ""
    was_training = [module for module in model.modules() if module.training]
    random = RandomStates(devices)
    model.eval()
    try:
        bounds = [(0, count - 1), (count - 1, count)]
        whole = float(loss(cut(0, count)))
        parts = [(float(loss(cut(a, b))), weight(cut(a, b))) for a, b in bounds]
    except Exception as error:
        if not is_out_of_memory(error):
            warnings.warn(
                "could not check whether the loss may be computed in parts: in evaluation mode "
                f"it raised {type(error).__name__}: {error}. Assuming that it is a mean over samples.",
                stacklevel=2,
            )
        return ""
    finally:
        for module in was_training:
            module.training = True
    if random.has_drawn():
        warnings.warn(
            "could not check whether the loss may be computed in parts: it draws random "
            "numbers. Assuming that it is a mean over samples.",
            stacklevel=2,
        )
        return ""
    total = sum(w for _, w in parts)
    if not total or not math.isfinite(whole):
        return ""
    together = sum(value * w for value, w in parts if w) / total
    if abs(together - whole) <= tolerance * max(abs(whole), abs(together), 1e-6):
        return ""
    return (
        f"the loss of {count} samples is {whole:.6g}, but {together:.6g} as the weighted mean of "
        f"its parts ({', '.join(f'{value:.6g} x {w:g}' for value, w in parts)})"
    )
