"""Which memory holds parameters, gradients, optimizer state and inputs."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from oomph._older_python import zip
from oomph._recorder.addresses import cuda_tensors, memory_of
from oomph._recorder.progress import now

_PARAMETER, _GRADIENT, _STATE, _INPUT, _GIVEN, _CACHE = (
    "parameter",
    "gradient",
    "optimizer_state",
    "input",
    "given",
    "cache",
)

_WEIGHTS = "weights"
"""Who owns parameters that belong to no module."""

_IS_CACHE = re.compile(r"cache|(^|_)(kv|past)(_|$)|^(k|keys?|v|values?)(_|$)").search
"""Names of buffers that hold keys and values of earlier tokens."""


class Marks:
    """Notes the addresses of what models and optimizers hold, and which module owns it."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.marks: list[tuple[str, int, int, str]] = []
        """Kind, time in microseconds, address, name of the module that owns it."""
        # Weak: an observer must not keep objects alive.
        self._parameters: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._models: weakref.WeakSet[Any] = weakref.WeakSet()
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        """The optimizers that are alive."""

    def forget(self) -> None:
        """A part of the script begins: note what there is, and nothing older."""
        self.marks.clear()
        self._parameters = {
            key: entry for key, entry in self._parameters.items() if entry[0]() is not None
        }
        self.models()
        self.gradients()
        self.optimizer_state()

    def add_model(self, root: torch.nn.Module) -> None:
        """Mark the parameters and buffers of `root`."""
        self._models.add(root)
        self._model(root)

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """`optimizer` holds state, and its parameters' gradients count."""
        self.optimizers.add(optimizer)

    def add_weights(self, tensors: Iterable[torch.Tensor]) -> None:
        """Mark those of `tensors` that no known module has: they are trained all the same."""
        new = [t for t in tensors if not self.knows(t)]
        self._parameters.update((id(t), (weakref.ref(t), _WEIGHTS)) for t in new)
        self._mark(_PARAMETER, ((t, _WEIGHTS) for t in new))

    def knows(self, t: torch.Tensor) -> bool:
        """Whether `t` is a parameter that is known."""
        known = self._parameters.get(id(t))
        return known is not None and known[0]() is t

    def weights(self) -> list[torch.Tensor]:
        """The parameters that are known and still there."""
        found = (reference() for reference, _ in self._parameters.values())
        return [p for p in found if p is not None]

    def inputs(self, args: Any) -> None:
        """Mark what a model was given."""
        self._mark(_INPUT, ((t, "") for t in cuda_tensors(args) if not t.requires_grad))

    def given(self, kwargs: Any) -> None:
        """Note what a model was given by name, which may be more than the batch."""
        self._mark(_GIVEN, ((t, "") for t in cuda_tensors(kwargs) if not t.requires_grad))

    def models(self) -> None:
        """Mark all models again, which may have changed or moved their parameters."""
        for root in self._models:
            self._model(root)

    def sharded_parameters(self) -> None:
        """Parameters that were sharded since their model was named are different objects now."""
        for root in self._models:
            if any(hasattr(p, "_local_tensor") for p in root.parameters()):
                self._model(root)

    def gradients(self) -> None:
        """Mark the gradients that are there."""
        pairs = []
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                self.add_weights(group["params"])
                for p in group["params"]:
                    owner = self._parameters.get(id(p), (None, ""))[1]
                    if p.grad is not None:
                        pairs.append((p.grad, owner))
        for reference, owner in self._parameters.values():
            p = reference()
            if p is not None and p.grad is not None:
                pairs.append((p.grad, owner))
        self._mark(_GRADIENT, pairs)

    def gradients_given(self, tensors: Iterable[Any], gradients: Iterable[Any]) -> None:
        """Mark `gradients`, which a script got of `tensors`, where those are parameters that are known."""
        pairs = zip(tensors, gradients, strict=False)
        of_parameters = (
            (grad, self._parameters[id(p)][1])
            for p, grad in pairs
            if grad is not None and self.knows(p)
        )
        self._mark(_GRADIENT, of_parameters)

    def optimizer_state(self) -> None:
        """Mark the state that optimizers hold."""
        for optimizer in self.optimizers:
            for p, state in optimizer.state.items():
                owner = self._parameters.get(id(p), (None, ""))[1]
                if isinstance(state, dict):
                    self._mark(
                        _STATE, ((t, owner) for t in state.values() if isinstance(t, torch.Tensor))
                    )

    def _model(self, root: torch.nn.Module) -> None:
        title = type(root).__name__
        named: dict[str, list[tuple[torch.Tensor, str]]] = {_PARAMETER: [], _CACHE: []}
        for tensors, may_cache in ((root.named_parameters(), False), (root.named_buffers(), True)):
            for path, t in tensors:
                where, _, name = path.rpartition(".")
                owner = f"{title}.{where}".rstrip(".")
                self._parameters[id(t)] = (weakref.ref(t), owner)
                kind = _CACHE if may_cache and _IS_CACHE(name) else _PARAMETER
                named[kind].append((t, owner))
        for kind, those in named.items():
            self._mark(kind, those)

    def _mark(self, kind: str, tensors: Iterable[tuple[torch.Tensor, str]]) -> None:
        """Note that the memory of `tensors` (pairs of tensor and owner) holds `kind` from now on."""
        time = now()
        for t, owner in tensors:
            t = getattr(t, "_local_tensor", t)  # of a DTensor, what this rank holds
            self.marks += ((kind, time, address, owner) for address in memory_of(t))
