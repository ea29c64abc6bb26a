"""Splits a batch into parts, one after the other, in inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oomph._older_python import zip
from oomph.levers._shared.base import Lever
from oomph.levers._shared.forward import around_forward
from oomph.levers._shared.job import Backward, Job


class SplitBatch(Lever):
    """Runs each call of a model on a part of the batch at a time, and returns the whole batch's outputs.

    Needs: models in evaluation mode whose outputs have one entry per sample. Changes: activations shrink to a
    part's; inputs and outputs stay whole. Results: to rounding, since kernels are chosen by size.

    Arguments with the batch's first dimension are split, all others go to each part. Calls that
    continue from a cache of keys and values are left whole (`generate` makes them). Refused: outputs
    without a dimension of samples, and those that compare samples with each other.
    """

    name = "split_batch"

    def __init__(self, parts: int) -> None:
        """`parts`: how many."""
        super().__init__()
        if parts < 2:
            raise self.refuse(f"parts is {parts}; at least 2 are needed")
        self.parts = parts
        self.checked: set[tuple[int, int]] = set()
        self.note = "no model was called without gradients on a batch that could be split"

    def install(self, job: Job) -> None:
        """Around the outermost models."""
        job.on_model.append(self._model)
        job.on_backward.append(self._backward)

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        if any(True for _ in root.parameters()):
            around_forward(root, self._around, self.order)

    def _around(
        self, module: torch.nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict
    ) -> Any:
        size = _batch(args, kwargs)
        if size < 2 or torch.is_grad_enabled() or _continues(kwargs):
            return forward(*args, **kwargs)
        if any(
            m.training and isinstance(m, torch.nn.modules.batchnorm._BatchNorm)
            for m in module.modules()
        ):
            raise self.refuse(
                "batch normalization in training mode depends on the whole batch: call model.eval()"
            )
        pieces = min(self.parts, size)
        outputs = []
        for index in range(pieces):
            begin, end = size * index // pieces, size * (index + 1) // pieces
            outputs.append(
                forward(*_part(args, size, begin, end), **_part(kwargs, size, begin, end))
            )
            self._check(module, forward, args, kwargs, size, end - begin, outputs[-1])
        self.applied += 1
        self.note = None
        return self._merge(outputs)

    def _check(
        self,
        module: Any,
        forward: Any,
        args: tuple,
        kwargs: dict,
        size: int,
        part: int,
        output: Any,
    ) -> None:
        """Every output has a dimension of samples, and one only."""
        key = (id(module), part)
        if key in self.checked:
            return
        self.checked.add(key)
        tensors = list(_tensors(output))
        if any(t.dim() == 0 or t.shape[0] != part for t in tensors):
            raise self.refuse(
                "an output of the model has no dimension of samples (a loss, a mean over the batch)",
                manually=True,
            )
        suspects = [i for i, t in enumerate(tensors) if part in t.shape[1:]]
        if not suspects or part == 1:
            return
        # By chance, or because samples are compared with each other? One sample alone shows which.
        alone = list(_tensors(forward(*_part(args, size, 0, 1), **_part(kwargs, size, 0, 1))))
        if any(alone[i].shape[1:] != tensors[i].shape[1:] for i in suspects):
            raise self.refuse(
                "an output compares the samples of a batch",
                manually=True,
            )

    def _merge(self, outputs: list[Any]) -> Any:
        first = outputs[0]
        if isinstance(first, torch.Tensor):
            return torch.cat(outputs)
        if first is None or isinstance(first, (bool, int, float, str)):
            return first
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            return type(first)(*(self._merge(list(items)) for items in zip(*outputs, strict=True)))
        if isinstance(first, (list, tuple)):
            return type(first)(self._merge(list(items)) for items in zip(*outputs, strict=True))
        if isinstance(first, dict):
            merged = {key: self._merge([output[key] for output in outputs]) for key in first}
            return merged if type(first) is dict else type(first)(**merged)
        if hasattr(first, "layers") and all(
            _is_plain(layer) for o in outputs for layer in o.layers
        ):
            for index, layer in enumerate(first.layers):
                layer.keys = torch.cat([output.layers[index].keys for output in outputs])
                layer.values = torch.cat([output.layers[index].values for output in outputs])
            return first
        raise self.refuse(
            f"an output of the model is a {type(first).__name__}, whose parts cannot be joined",
            manually=True,
        )

    def _backward(self, call: Backward) -> None:
        if self.applied:
            raise self.refuse("it calls backward. For training, use micro_batch")


def _batch(args: tuple, kwargs: dict) -> int:
    """The first dimension of the first tensor that has one; 0 without."""
    return next((t.shape[0] for t in _tensors((args, kwargs)) if t.dim() > 0), 0)


def _continues(kwargs: dict) -> bool:
    """Whether the caller gave a cache: what is in it, or is to be put into it, cannot be split."""
    return kwargs.get("past_key_values") is not None


def _is_plain(layer: Any) -> bool:
    """A cache's layer of keys and values and nothing else."""
    return type(layer).__name__ == "DynamicLayer" and not hasattr(layer, "oomph_keys")


def _tensors(value: Any):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _part(value: Any, size: int, begin: int, end: int) -> Any:
    """`value` with each tensor of `size` samples cut to those from `begin` to `end`."""
    if isinstance(value, torch.Tensor):
        return value[begin:end] if value.dim() > 0 and value.shape[0] == size else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_part(item, size, begin, end) for item in value))
    if type(value) in (list, tuple):
        return type(value)(_part(item, size, begin, end) for item in value)
    if type(value) is dict:
        return {key: _part(item, size, begin, end) for key, item in value.items()}
    return value


LEVER = SplitBatch
