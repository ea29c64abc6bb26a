"""Weights and activations in 16 bits, for inference."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from oomph.levers._shared.base import Lever
from oomph.levers._shared.half import DTYPES, HALF, full
from oomph.levers._shared.job import Backward, Job
from oomph.levers._shared.quantized_linear import QuantizedLinear

WIDE = (torch.float32, torch.float64)


class HalfWeights(Lever):
    """Models are cast to 16 bits, as `module.half()` or `module.bfloat16()` do.

    Needs: inference with fp32 models; a GPU with bf16 for `bf16`. Changes: weights and activations
    take half the memory, and the cast happens before a model moves to the GPU, so loading needs half as well.
    Floating-point arguments of a model are cast too, and so are fp32 inputs of layers; outputs are
    returned in fp32. Results: other numerics (`oomph drift` measures them).

    As in `from_pretrained(dtype=…)`, frequencies of rotary embeddings (`inv_freq`) stay in fp32.
    """

    name = "half_weights"

    def __init__(self, dtype: str) -> None:
        """`dtype`: `bf16` or `fp16`."""
        super().__init__()
        if dtype not in DTYPES:
            raise self.refuse(f"dtype is {dtype!r}; expected one of {', '.join(DTYPES)}")
        self.dtype = DTYPES[dtype]
        self.note = "no model in fp32 was called"
        self.ours: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """The models that the lever cast, not those that the script cast itself."""

    def install(self, job: Job) -> None:
        """When a model moves to the GPU, or is first called."""
        job.on_move.append(lambda module, device: self._cast(module))
        job.on_model.append(self._model)
        job.on_arguments.append(self._arguments)
        job.on_leave.append(self._leave)
        job.on_backward.append(self._backward)
        nn_module.register_module_forward_pre_hook(self._layer)

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        on_gpu = any(p.is_cuda for p in root.parameters())
        bf16 = self.dtype == torch.bfloat16
        if on_gpu and bf16 and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise self.refuse(
                f"{torch.cuda.get_device_name()} does not support bf16. Use fp16",
            )
        self._cast(root)

    def _cast(self, root: torch.nn.Module) -> None:
        if not cast(root, self.dtype):
            return
        if not self.applied:
            self.note = None
        self.applied += 1
        self.ours.update(root.modules())

    def _arguments(self, root: torch.nn.Module, args: tuple, kwargs: dict) -> Any:
        if root not in self.ours:
            return None
        return narrow(args, self.dtype), narrow(kwargs, self.dtype)

    def _leave(self, root: torch.nn.Module, output: Any) -> Any:
        return full(output) if root in self.ours else None

    def _layer(self, module: torch.nn.Module, args: tuple) -> Any:
        """Cast tensors that a model creates in fp32 (a table of sines, a mask) where they meet 16-bit weights."""
        if not args or not module._parameters or module not in self.ours:
            return None
        first = args[0]
        if type(first) is not torch.Tensor or first.dtype not in WIDE:
            return None
        own = next((p for p in module._parameters.values() if p is not None), None)
        if own is None or own.dtype not in HALF or torch.is_autocast_enabled(first.device.type):
            return None
        return (first.to(own.dtype), *args[1:])

    def _backward(self, call: Backward) -> None:
        if self.applied:
            raise self.refuse(
                "it calls backward: gradients and updates in 16 bits lose small values. For training "
                "there is mixed_precision",
                manually=True,
            )


def cast(root: torch.nn.Module, dtype: torch.dtype) -> bool:
    """Cast the floating parameters and buffers of `root` to `dtype`; whether there were any wider."""
    # Their rounding would move every angle of long sequences, or every weight of a row.
    stays = [
        (module, name, buffer)
        for module in root.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and (name.endswith("inv_freq") or isinstance(module, QuantizedLinear))
    ]
    kept = {id(buffer) for _, _, buffer in stays}
    tensors = (*root.parameters(), *root.buffers())
    if not any(t.dtype in WIDE and id(t) not in kept and not t.is_meta for t in tensors):
        return False
    root._apply(lambda t: t.to(dtype) if t.dtype in WIDE else t)
    for module, name, buffer in stays:
        module._buffers[name] = buffer
    return True


def narrow(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its tensors of 32 bits or more in `dtype`."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in WIDE else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(narrow(item, dtype) for item in value))
    if type(value) in (list, tuple):
        return type(value)(narrow(item, dtype) for item in value)
    if type(value) is dict:
        return {key: narrow(item, dtype) for key, item in value.items()}
    return value


LEVER = HalfWeights
