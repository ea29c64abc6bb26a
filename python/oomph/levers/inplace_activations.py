"""Activation functions that overwrite their inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oomph.levers._shared.base import Lever
from oomph.levers._shared.forward import NamedModules
from oomph.levers._shared.job import Job

BY_RESULT = (
    torch.nn.ReLU,
    torch.nn.LeakyReLU,
    torch.nn.ELU,
    torch.nn.CELU,
    torch.nn.SELU,
    torch.nn.Threshold,
    torch.nn.Dropout,
)
"""Their gradient depends only on their result (or a mask), so their input need not be kept."""


class InplaceActivations(Lever):
    """Activation modules work in place if nothing else reads what they overwrite.

    Needs: ReLU, LeakyReLU, ELU, CELU, SELU, Threshold or Dropout modules. Changes: one buffer fewer
    for each. Results: bitwise the same. Before the first forward pass with gradients, a trial pass that
    keeps nothing shows which modules' inputs are read again, saved by others or returned. Those
    are skipped.

    SiLU, GELU, Mish and the like need their inputs in the backward pass, so in place saves nothing there;
    they are skipped.
    """

    name = "inplace_activations"

    def __init__(self, modules: list[str]) -> None:
        """`modules`: names as in the plan file."""
        super().__init__()
        if not modules:
            raise self.refuse("it names no modules")
        self.places = NamedModules(modules)
        self.waiting: dict[torch.nn.Module, dict[str, torch.nn.Module]] = {}
        self.kept: dict[str, list[str]] = {}
        self.called = False

    def install(self, job: Job) -> None:
        """Inspect a model when it is called first."""
        job.on_model.append(self._model)
        job.on_enter.append(self._enter)

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        chosen = {}
        for name, module in self.places.take(named).items():
            if not isinstance(module, BY_RESULT):
                self._keep(f"{type(module).__name__} needs its input in the backward pass", name)
            elif module.inplace:
                self._keep("they work in place already", name)
            elif isinstance(module, torch.nn.LeakyReLU) and module.negative_slope < 0:
                self._keep("a negative slope needs the input", name)
            else:
                chosen[name] = module
        if chosen:
            self.waiting[root] = chosen

    def _keep(self, why: str, name: str) -> None:
        self.kept.setdefault(why, []).append(name)

    def _enter(self, root: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        if root not in self.waiting or not torch.is_grad_enabled():
            return
        chosen = self.waiting.pop(root)
        reads = _Reads(chosen)
        try:
            with _Unchanged(root):
                reads.look(root, args, kwargs)
        except Exception as error:
            self.add_note(f"nothing was changed because a trial forward pass failed: {error}")
            return
        for name, module in chosen.items():
            why = reads.reason(name)
            if why is None:
                module.inplace = True
                self.applied += 1
            else:
                self._keep(why, name)

    def finish(self) -> None:
        """Report what was skipped, and why."""
        if problem := self.places.problem():
            self.add_note(problem)
        self.left_alone = [name for names in self.kept.values() for name in names]
        for why, names in self.kept.items():
            self.add_note(f"{len(names)} skipped because {why}: {', '.join(names[:3])}")


class _Unchanged:
    """Restores random states and buffers afterwards."""

    def __init__(self, root: torch.nn.Module) -> None:
        self.root = root

    def __enter__(self) -> None:
        from oomph._random_states import RandomStates

        self.random = RandomStates()
        self.buffers = [
            (part._buffers, name, buffer)
            for part in self.root.modules()
            for name, buffer in part._buffers.items()
            if buffer is not None
        ]
        for buffers, name, buffer in self.buffers:
            buffers[name] = buffer.clone()

    def __exit__(self, *error: Any) -> None:
        for buffers, name, buffer in self.buffers:
            buffers[name] = buffer
        self.random.restore()


class _Reads(TorchDispatchMode):
    """Detects later reads of modules' inputs."""

    def __init__(self, chosen: dict[str, torch.nn.Module]) -> None:
        super().__init__()
        self.chosen = chosen
        self.inputs: dict[str, list[StorageWeakRef]] = {name: [] for name in chosen}
        self.by_storage: dict[int, list[str]] = {}
        self.reasons: dict[str, str] = {}
        self.inside: str | None = None
        self.saved: dict[int, StorageWeakRef] = {}

    def look(self, root: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        """One forward pass that keeps nothing for a backward pass."""
        given = [*_tensors((args, kwargs)), *_tensors(list(root.parameters()))]
        self.given = {tensor.untyped_storage()._cdata for tensor in given}
        handles = []
        for name, module in self.chosen.items():
            handles.append(module.register_forward_pre_hook(self._begins(name)))
            handles.append(module.register_forward_hook(self._ends, always_call=True))
        try:
            # The graph keeps the numbers of storages instead of tensors.
            with torch.autograd.graph.saved_tensors_hooks(self._save, _lost), self:
                output = root.forward(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        for name, storages in self.inputs.items():
            if any(not storage.expired() for storage in storages):
                self.reasons.setdefault(name, "their inputs are kept by the script")
        del output

    def reason(self, name: str) -> str | None:
        """Why module `name` must not work in place; None if it may."""
        if not self.inputs[name]:
            return "the forward pass does not reach them"
        return self.reasons.get(name)

    def _begins(self, name: str) -> Any:
        def begins(module: torch.nn.Module, args: tuple) -> None:
            self.inside = name
            for tensor in _tensors(args):
                storage = tensor.untyped_storage()
                key = storage._cdata
                self.inputs[name].append(StorageWeakRef(storage))
                self.by_storage.setdefault(key, []).append(name)
                if key in self.given:
                    self.reasons.setdefault(name, "their inputs are the model's own")
                elif key in self.saved:
                    self.reasons.setdefault(name, "their inputs are saved for the backward pass")
                elif tensor.is_leaf and tensor.requires_grad:
                    self.reasons.setdefault(name, "their inputs are leaves of the graph")

        return begins

    def _ends(self, module: torch.nn.Module, args: tuple, output: Any) -> None:
        self.inside = None
        if not isinstance(module, torch.nn.Dropout):
            # In place, its gradient follows from its result, which is then saved.
            for tensor in _tensors(output):
                storage = tensor.untyped_storage()
                self.saved[storage._cdata] = StorageWeakRef(storage)

    def _save(self, saved: torch.Tensor) -> None:
        for tensor in _tensors(saved):
            storage = tensor.untyped_storage()
            key = storage._cdata
            self.saved[key] = StorageWeakRef(storage)  # the number is then nobody else's
            self._read(key, "their inputs are saved for the backward pass")

    def _read(self, key: int, why: str) -> None:
        for name in self.by_storage.get(key, ()):
            if name != self.inside:
                self.reasons.setdefault(name, why)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            self._read(tensor.untyped_storage()._cdata, "their inputs are read again")
        return func(*args, **kwargs)


def _tensors(value: Any) -> list[torch.Tensor]:
    """Those with a storage: of a sparse one its values, which alone an activation could overwrite."""
    found = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is torch.sparse_coo:
                leaf = leaf._values()
            elif leaf.layout is not torch.strided:
                leaf = leaf.values()
            found.append(leaf)
    return found


def _lost(_: None) -> torch.Tensor:
    raise RuntimeError("a backward pass inside the forward pass")


LEVER = InplaceActivations
