"""The KV cache in 8 bits."""

from __future__ import annotations

import functools
from typing import Any

import torch

from oomph._import_hooks import on_import
from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Backward, Job

RESHAPING = ("reorder_cache", "crop", "batch_repeat_interleave", "batch_select_indices")
"""Methods of a cache's layer that act on each token's keys and values alike."""


class KvCache(Lever):
    """Stores keys and values of Hugging Face's growing caches as 8-bit integers.

    Needs: a Hugging Face model that generates with its default cache (`DynamicCache`). Changes: keys
    and values of earlier tokens take half as much as in 16 bits, with one scale for each token
    and head; a layer's are dequantized while it attends. The prompt's own pass uses exact values.
    Results: other numerics (`oomph drift` measures them). Sliding-window, static and quantized caches
    are skipped.
    """

    name = "kv_cache"

    def __init__(self, bits: int = 8) -> None:
        """`bits`: 8."""
        super().__init__()
        if bits != 8:
            raise self.refuse(f"bits is {bits}; only 8 is supported")
        self.note = "no KV cache was used (DynamicCache of transformers)"
        self.layers: set[int] = set()

    def install(self, job: Job) -> None:
        """When transformers is imported."""
        job.on_backward.append(self._backward)
        on_import("transformers.cache_utils", self._patch)

    def _patch(self, module: Any) -> None:
        kind = module.DynamicLayer
        update, lever = kind.update, self

        @functools.wraps(update)
        def quantized(
            layer: Any,
            key_states: torch.Tensor,
            value_states: torch.Tensor,
            *args: Any,
            **kwargs: Any,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            if type(layer) is not kind or torch.compiler.is_compiling():
                return update(layer, key_states, value_states, *args, **kwargs)
            if not layer.is_initialized:
                layer.lazy_initialization(key_states, value_states)
            lever.applied += 1
            lever.note = None
            first = layer.keys.numel() == 0
            wide = []
            for name, states in (("keys", key_states), ("values", value_states)):
                q, scale = to_int8(states)
                if not first:
                    q = torch.cat([getattr(layer, name), q], dim=-2)
                    scale = torch.cat([getattr(layer, f"oomph_{name}"), scale], dim=-2)
                setattr(layer, name, q)
                setattr(layer, f"oomph_{name}", scale)
                wide.append(states if first else from_int8(q, scale))
            return wide[0], wide[1]

        kind.update = quantized
        for name in RESHAPING:
            setattr(kind, name, _both(getattr(kind, name)))

    def _backward(self, call: Backward) -> None:
        if self.applied:
            raise self.refuse("it calls backward, but an 8-bit cache has no gradients")


def to_int8(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`states` (…, head size) as integers of 8 bits, and their scales (…, 1) in the type of `states`."""
    scale = states.abs().amax(-1, keepdim=True).div_(127)
    scale.clamp_(min=torch.finfo(states.dtype).tiny)
    return (states / scale).round_().clamp_(-127, 127).to(torch.int8), scale


def from_int8(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The values that `q` stands for, in the type of `scale`."""
    return q.to(scale.dtype).mul_(scale)


def _both(original: Any) -> Any:
    """A method that acts on the integers, and then on the scales, which have the same shape but the last."""

    @functools.wraps(original)
    def method(layer: Any, *args: Any, **kwargs: Any) -> Any:
        scales = getattr(layer, "oomph_keys", None)
        if scales is None:
            return original(layer, *args, **kwargs)
        integers = layer.keys, layer.values
        layer.keys, layer.values = layer.oomph_keys, layer.oomph_values
        original(layer, *args, **kwargs)
        layer.oomph_keys, layer.oomph_values = layer.keys, layer.values
        layer.keys, layer.values = integers
        return original(layer, *args, **kwargs)

    return method


LEVER = KvCache
