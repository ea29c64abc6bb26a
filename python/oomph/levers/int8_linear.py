"""Linear layers with weights of 8 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from oomph.levers._shared.base import Lever
from oomph.levers._shared.job import Backward, Job
from oomph.levers._shared.quantized_linear import QuantizedLinear, is_conv1d

KINDS = ("weight_only", "dynamic")

LEAST = 256
"""Inputs of a layer below which its scales (4 bytes an output) are more than 1 % of its bf16 weights."""


class Int8Linear(Lever):
    """Keeps weights of linear layers in 8 bits, with a scale for each output.

    Needs: inference with `nn.Linear` (or GPT-2's `Conv1D`) layers of 256 inputs or more.
    Changes: their weights take half as much as in 16 bits. `weight_only` dequantizes the weights to
    the inputs' type for the product, 64 MiB at a time: as accurate as the
    quantized weights allow, and slower if the product is compute-bound. `dynamic`
    also quantizes the inputs to 8 bits, with a scale for each row, and multiplies integers, which GPUs
    do fast. Results: other numerics (`oomph drift` measures them).

    Skipped: weights that are also used elsewhere (an embedding tied to the head), and attention
    that reads its layers' weights itself (`nn.MultiheadAttention`).
    """

    name = "int8_linear"
    frozen = False
    """Whether it is for layers that are not trained, of a job that trains."""

    def __init__(self, kind: str = "weight_only") -> None:
        """`kind`: `weight_only` or `dynamic`."""
        super().__init__()
        if kind not in KINDS:
            raise self.refuse(f"kind is {kind!r}; expected one of {', '.join(KINDS)}")
        self.kind = kind
        self.note = f"no linear layers of {LEAST} inputs or more were found"
        self.before = self.after = 0
        self.tied = 0

    def install(self, job: Job) -> None:
        """Where a model moves to the GPU, or is first called."""
        job.on_move.append(lambda module, device: self._quantize(module))
        job.on_model.append(lambda root, named: self._quantize(root))
        job.on_backward.append(self._backward)

    def _quantize(self, root: nn.Module) -> None:
        if any(p.is_meta for p in root.parameters()):
            return
        count, self.tied = 0, max(self.tied, tied(root, self.frozen))
        for layer in quantize(root, self.kind, self.frozen):
            count += 1
            self.before += 2 * layer.q.numel()
            self.after += layer.q.nbytes + layer.scale.nbytes
        if count:
            self.applied += count
            self.note = None

    def _backward(self, call: Backward) -> None:
        if self.applied:
            raise self.refuse("it calls backward, but 8-bit weights cannot be trained")

    def finish(self) -> None:
        """Report how much smaller the weights are."""
        if self.before:
            self.add_note(
                f"weights of linear layers: {self.after / self.before:.3f} of their bytes in bf16"
            )
        if self.tied:
            self.add_note(f"skipped layers that share their weights with an embedding: {self.tied}")


def quantize(root: nn.Module, kind: str, frozen: bool = False) -> list[QuantizedLinear]:
    """Replace the layers of `root` where possible; returns the replacements.

    `frozen`: those that are not trained, of a job that trains.
    """
    shared = _elsewhere(root)
    made: dict[int, QuantizedLinear] = {}
    layers = []
    for parent in list(root.modules()):
        if isinstance(parent, nn.TransformerEncoderLayer):
            # Its fused path reads the weights itself.
            torch.backends.mha.set_fastpath_enabled(False)
        for name, child in list(parent._modules.items()):
            if child is None or not _fits(child, frozen) or id(child.weight) in shared:
                continue
            layer = made.get(id(child))
            if layer is None:
                layer = made[id(child)] = QuantizedLinear(child, kind, frozen)
                layers.append(layer)
            parent._modules[name] = layer
    return layers


def tied(root: nn.Module, frozen: bool = False) -> int:
    """Linear layers of `root` that would be replaced if nothing else used their weights."""
    shared = _elsewhere(root)
    return sum(_fits(m, frozen) and id(m.weight) in shared for m in root.modules())


def _elsewhere(root: nn.Module) -> set[int]:
    """Parameters of modules other than linear layers, or of several modules."""
    owners: dict[int, int] = {}
    for module in root.modules():
        for p in module._parameters.values():
            if p is not None:
                owners[id(p)] = owners.get(id(p), 0) + (1 if _is_linear(module) else 2)
    return {number for number, count in owners.items() if count > 1}


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear or is_conv1d(module)


def _fits(module: nn.Module, frozen: bool) -> bool:
    if not _is_linear(module) or (frozen and module.weight.requires_grad):
        return False
    weight: Any = module.weight
    if type(weight) not in (torch.Tensor, nn.Parameter) or not weight.is_floating_point():
        return False
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return False  # already changed by other code
    return bool(weight.shape[0 if is_conv1d(module) else 1] >= LEAST)


LEVER = Int8Linear
