"""When each outermost model was called, and the calls that build a graph without need."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from oomph._recorder.addresses import cuda_tensors
from oomph._recorder.progress import now

_SWITCH = re.compile(r"checkpoint(ing)?")
"""In the names of switches: `gradient_checkpointing`, `use_checkpoint`."""


class OutermostModels:
    """Tells a model that was replaced from one in use, and a teacher from a student."""

    def __init__(self) -> None:
        """None was called so far."""
        self._models: dict[int, dict[str, Any]] = {}
        self._gone: list[dict[str, Any]] = []
        self._graphs: list[tuple[int, dict[str, Any], bool]] = []
        """Calls that record a graph for the model's own parameters alone: model, and whether it evaluates."""

    def called(self, model: torch.nn.Module, name: str, args: tuple, call: int) -> None:
        """`model` is called, as `call` (0: its number is not kept)."""
        seen = self._models.get(id(model))
        if seen is None or seen["model"]() is not model:
            if seen is not None:
                self._gone.append(seen)
            parameters = list(model.parameters())
            seen = dict(
                # Weak: an observer must not keep objects alive.
                model=weakref.ref(model),
                name=name,
                first_us=self._since(parameters) or now(),
                parameters=[weakref.ref(p) for p in parameters],
                elements=sum(p.numel() for p in parameters),
                trained=any(p.requires_grad for p in parameters),
                optimized=False,
            )
            self._models[id(model)] = seen
        seen["last_us"] = now()
        if (
            call
            and seen["trained"]
            and torch.is_grad_enabled()
            and not any(t.requires_grad for t in cuda_tensors(args))
        ):
            self._graphs.append((call, seen, not is_training(model)))

    def _since(self, parameters: list[torch.nn.Parameter]) -> int | None:
        """When another model was first called that has all of `parameters`, as a copy of its module has."""
        mine = {id(p) for p in parameters}
        for seen in self._models.values():
            theirs = {id(p) for one in seen["parameters"] if (p := one()) is not None}
            if mine and mine == theirs:
                return int(seen["first_us"])
        return None

    @property
    def alive(self) -> list[torch.nn.Module]:
        """Those that are still there."""
        found = (seen["model"]() for seen in self._models.values())
        return [model for model in found if model is not None]

    def optimized_by(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Note which models have parameters that `optimizers` hold."""
        held = {id(p) for one in optimizers for group in one.param_groups for p in group["params"]}
        for seen in self._models.values():
            model = None if seen["optimized"] else seen["model"]()
            if model is not None:
                seen["optimized"] = any(id(p) in held for p in model.parameters())

    def as_dict(self) -> dict[str, Any]:
        """The record's part of it."""
        models = [
            dict(
                name=seen["name"],
                first_us=seen["first_us"],
                last_us=seen["last_us"],
                elements=seen["elements"],
                optimized=seen["optimized"],
            )
            for seen in (*self._gone, *self._models.values())
        ]
        # Optimizers may hold copies of all parameters, as master weights: then none seems optimized.
        some = any(model["optimized"] for model in models)
        return dict(
            outermost_models=models,
            own_graphs=[call for call, *_ in self._graphs],
            idle_graphs=[call for call, _, evaluates in self._graphs if evaluates],
            discarded_graphs=[
                call
                for call, seen, evaluates in self._graphs
                if not seen["optimized"] and (evaluates or some)
            ],
            idle_checkpointing=any(map(has_idle_checkpointing, self.alive)),
            wants_checkpointing=any(map(wants_checkpointing, self.alive)),
            wants_freezing=any(map(wants_freezing, self.alive)),
        )


def is_training(module: torch.nn.Module) -> bool:
    """Its mode; frozen TorchScript has none, and evaluates."""
    return bool(getattr(module, "training", False))


def builds_graph_in_evaluation(model: torch.nn.Module) -> bool:
    """Whether a call of `model` now is one in evaluation mode that records a graph."""
    return not is_training(model) and torch.is_grad_enabled()


def has_idle_checkpointing(model: torch.nn.Module) -> bool:
    """Whether a part of `model` has its checkpointing switched on, by an attribute such as transformers', diffusers' and
    timm's, and evaluates, so that it keeps all activations in most libraries."""
    return any(not is_training(module) and _wants(module.__dict__) for module in model.modules())


def wants_checkpointing(model: torch.nn.Module) -> bool:
    """Whether a part of `model`, or its configuration, has a switch for checkpointing that is on."""
    return any(
        _wants(module.__dict__) or _wants(getattr(module.__dict__.get("config"), "__dict__", {}))
        for module in model.modules()
    )


def wants_freezing(model: torch.nn.Module) -> bool:
    """Whether `requires_grad` of a part of `model` was set to False, which freezes no parameter: `requires_grad_` does."""
    return any(
        module.__dict__.get("requires_grad") is False
        and any(p.requires_grad for p in module.parameters())
        for module in model.modules()
    )


def _wants(attributes: dict[str, Any]) -> bool:
    return any(
        value is True and _SWITCH.search(name) is not None for name, value in attributes.items()
    )
