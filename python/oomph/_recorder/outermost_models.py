"""When each outermost model was called, and the calls that build a graph without need."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from oomph._recorder.addresses import cuda_tensors
from oomph._recorder.progress import now


class OutermostModels:
    """Tells a model that was replaced from one in use, and a teacher from a student."""

    def __init__(self) -> None:
        """None was called so far."""
        self._models: dict[int, dict[str, Any]] = {}
        self._gone: list[dict[str, Any]] = []
        self._idle: list[int] = []

    def called(self, model: torch.nn.Module, name: str, args: tuple, call: int) -> None:
        """`model` is called, as `call` (0: its number is not kept)."""
        seen = self._models.get(id(model))
        if seen is None or seen["model"]() is not model:
            if seen is not None:
                self._gone.append(seen)
            seen = dict(
                # Weak: an observer must not keep objects alive.
                model=weakref.ref(model),
                name=name,
                first_us=now(),
                elements=sum(p.numel() for p in model.parameters()),
                trained=any(p.requires_grad for p in model.parameters()),
            )
            self._models[id(model)] = seen
        seen["last_us"] = now()
        if (
            call
            and seen["trained"]
            and builds_graph_in_evaluation(model)
            and not any(t.requires_grad for t in cuda_tensors(args))
        ):
            self._idle.append(call)

    @property
    def alive(self) -> list[torch.nn.Module]:
        """Those that are still there."""
        found = (seen["model"]() for seen in self._models.values())
        return [model for model in found if model is not None]

    def as_dict(self, optimizers: Any) -> dict[str, Any]:
        """The record's part of it; `optimizers` are those that are alive."""
        optimized = {
            id(p) for one in optimizers for group in one.param_groups for p in group["params"]
        }
        models = []
        for seen in (*self._gone, *self._models.values()):
            model = seen["model"]()
            models.append(
                dict(
                    name=seen["name"],
                    first_us=seen["first_us"],
                    last_us=seen["last_us"],
                    elements=seen["elements"],
                    alive=model is not None,
                    optimized=model is not None
                    and any(id(p) in optimized for p in model.parameters()),
                )
            )
        return dict(outermost_models=models, idle_graphs=self._idle)


def builds_graph_in_evaluation(model: torch.nn.Module) -> bool:
    """Whether a call of `model` now is one in evaluation mode that records a graph."""
    return not model.training and torch.is_grad_enabled()
