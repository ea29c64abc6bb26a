"""Activation checkpointing of chosen modules."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch

from oomph._older_python import zip
from oomph._random_states import RandomStates
from oomph._user_functions import ENDING, in_transform, reached
from oomph._user_functions import watch as watch_functions
from oomph.levers._shared import switches
from oomph.levers._shared.base import Lever, failure
from oomph.levers._shared.compiled import refuse_compiled, refuse_in_compiled
from oomph.levers._shared.forward import NamedModules, around_forward, arounds
from oomph.levers._shared.job import Job
from oomph.levers._shared.recomputation import (
    attention_kernels,
    recomputed_in_backward,
    set_attention_kernels,
)

NORMS = (torch.nn.modules.batchnorm._NormBase,)
"""In training they update their statistics without reading them."""


class Checkpoint(Lever):
    """Recomputes modules in the backward pass instead of keeping what they save, and functions outside of modules.

    Needs: modules whose forward depends on their arguments, parameters and buffers alone, and functions of which the same holds
    (`name()` in the plan; of the script, or of a module or a plain class of the user's). Changes:
    keeps only their inputs; up to one more forward pass. Results: bitwise the same:
    random states (torch, Python, NumPy), autocast, the choice of attention kernels, training modes
    and buffers are the same in the second forward as in the first, and running statistics are
    updated once.

    Where these are all layers of a model that Hugging Face's `Trainer` trains, its `gradient_checkpointing` does it.

    Inert without gradients. Refused by name: modules that change their inputs in place, modules that
    are compiled. A cache of keys and values is left empty while a block is checkpointed.
    """

    name = "checkpoint"

    def __init__(self, modules: list[str]) -> None:
        """`modules`: names as in the plan file."""
        super().__init__()
        if not modules:
            raise self.refuse("it names no modules")
        self.modules = modules
        self.places = NamedModules([name for name in modules if not name.endswith(ENDING)])
        self.functions = {name for name in modules if name.endswith(ENDING)}
        self.blocks: list[_Block] = []
        self.backwards = 0
        self.inside: _Function | None = None
        """The function that is running, for the first time or again."""
        self.by_framework = 0
        """Modules that Hugging Face's Trainer checkpoints."""

    def install(self, job: Job) -> None:
        """Wrap the modules when their model is called first."""
        self.job = job
        switches.watch()
        job.on_model.append(self._model)
        if self.functions:
            watch_functions(self._function)
            job.on_enter.append(self._called)
        job.after_backward.append(self._after_backward)

    def _model(self, root: torch.nn.Module, named: dict[str, torch.nn.Module]) -> None:
        taken = self.places.take(named)
        for name in switches.checkpointed(self.job, root, named, taken):
            del taken[name]
            self.by_framework += 1
            self.switch = "TrainingArguments: gradient_checkpointing=True"
        for name, module in taken.items():
            refuse_compiled(self, name, named)
            block = _Block(self, name, module)
            self.blocks.append(block)
            self.handles.append(around_forward(module, block, self.order))

    def _function(self, name: str, function: types.FunctionType) -> types.FunctionType | None:
        """What stands in the place of a function that the plan names."""
        if name not in self.functions:
            return None
        block = _Function(self, name, function)
        self.blocks.append(block)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            return block.called(args, kwargs)

        return cast("types.FunctionType", called)

    def _called(self, root: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        """A model that a function calls must be among those whose state is set back for its second call."""
        inside = self.inside
        if inside is not None and all(part is not root for part in inside.parts):
            raise self.refuse(
                f"{inside.name} calls a {type(root).__name__} that is neither an argument nor a global variable. Leave it out "
                "of the plan",
                modules=[inside.name],
            )

    def _after_backward(self) -> None:
        self.backwards += 1

    def finish(self) -> None:
        """Count the modules that were checkpointed, and report those without effect."""
        called = [block for block in self.blocks if block.calls]
        again = [block for block in called if block.recomputed]
        self.applied = (len(again) if self.backwards else len(called)) + self.by_framework
        if problem := self.places.problem():
            self.add_note(problem)
        if missing := sorted(self.functions - {block.name for block in self.blocks}):
            self.add_note(f"the script has no functions of these names: {', '.join(missing[:3])}")
        if self.blocks and not called:
            self.add_note(
                "the modules were never called with gradients, so they saved nothing anyway"
            )
        elif self.backwards and len(again) < len(called):
            lost = [block.name for block in called if not block.recomputed]
            self.add_note(
                f"{len(lost)} of the modules were never recomputed, because no backward pass needed "
                f"what they save: {', '.join(lost[:3])}"
            )


def is_checkpointed(module: torch.nn.Module) -> bool:
    """Whether this lever already wraps `module`."""
    return any(isinstance(around, _Block) for around in arounds(module))


class _Block:
    """One checkpointed module."""

    def __init__(self, lever: Checkpoint, name: str, module: torch.nn.Module) -> None:
        self.lever, self.name = lever, name
        self.calls = self.recomputed = 0
        # Which layers of a key-value cache are this module's.
        self.layers = {m.layer_idx for m in module.modules() if hasattr(m, "layer_idx")}
        self.read: set[tuple[int, str]] | None = None
        """Buffers that the forward changes and that are no normalization's statistics, by the number
        of their module and their name; None before the first call."""

    def __call__(
        self,
        module: torch.nn.Module | _Reached,
        forward: Callable[..., Any],
        args: tuple,
        kwargs: dict,
    ) -> Any:
        # A function around it is computed again as a whole.
        if not torch.is_grad_enabled() or self.lever.inside is not None:
            return forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            refuse_in_compiled(self.lever, self.name)
        if any(_is_cache(value) for value in (*args, *kwargs.values())):
            if self._cached((*args, *kwargs.values())):
                # A second pass would append to it again.
                self.lever.add_note(
                    f"{self.name} continues from cached keys: not checkpointed then"
                )
                return forward(*args, **kwargs)
            self.lever.add_note("key-value caches are left empty while gradients are recorded")
            args = tuple(None if _is_cache(value) else value for value in args)
            kwargs = {k: None if _is_cache(value) else value for k, value in kwargs.items()}
            if "use_cache" in kwargs:
                kwargs["use_cache"] = False
        self.calls += 1
        call = _Call(self, module)
        given = module.tensors if isinstance(module, _Reached) else ()
        call.given = _versions((*args, *kwargs.values(), given))
        output = recomputed_in_backward(self.name, forward, args, kwargs, call.first, call.again)
        if _have_changed(call.given):
            raise self.lever.refuse(
                f"{self.name} changes its input in place, so it cannot be recomputed. Leave "
                "it out of the plan, or checkpoint the module around it",
                modules=[self.name],
            )
        return output

    def _cached(self, values: tuple) -> bool:
        """Whether a cache among the arguments holds anything for this module's layers."""
        for value in values:
            if _is_cache(value):
                for layer in self.layers or {0}:
                    if layer is not None and value.get_seq_length(layer):
                        return True
        return False


class _Function(_Block):
    """A checkpointed function of the user's, outside of modules."""

    def __init__(self, lever: Checkpoint, name: str, function: types.FunctionType) -> None:
        super().__init__(lever, name, torch.nn.Module())
        self.function = function
        self.parts: list[torch.nn.Module] = []
        """What its call that is running, or its last one, can reach."""

    def called(self, args: tuple, kwargs: dict) -> Any:
        """In its place. What it is given, and the models that it can reach, are as in the first call when it is called again."""
        lever = self.lever
        if (
            lever.inside is not None  # the function around it computes it again, too
            or lever.job.is_inside_model
            or not torch.is_grad_enabled()
            or torch._C._current_graph_task_id() != -1
            or torch.compiler.is_compiling()
            or in_transform()
        ):
            return self.function(*args, **kwargs)
        parts, tensors = reached(self.function, args, kwargs)
        if any(a is not b for a, b in zip(parts, self.parts, strict=False)) or len(parts) != len(
            self.parts
        ):
            self.read = None
        self.parts = parts
        return self(_Reached(parts, tensors), self._run, args, kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self.lever.inside = self
        try:
            return self.function(*args, **kwargs)
        finally:
            self.lever.inside = None


class _Reached:
    """The modules and tensors that a function's call can reach, in the place of a module."""

    def __init__(self, parts: list[torch.nn.Module], tensors: list[torch.Tensor]) -> None:
        self._parts, self.tensors = parts, tensors

    def modules(self) -> list[torch.nn.Module]:
        return self._parts


_Versions = list[tuple[weakref.ref[torch.Tensor], int]]


def _versions(arguments: tuple) -> _Versions:
    """Weak references to the tensors among a module's arguments; the recomputation keeps them alive."""
    tensors: list[torch.Tensor] = []
    for value in arguments:
        parts = value if isinstance(value, (list, tuple)) else (value,)
        tensors += [part for part in parts if isinstance(part, torch.Tensor)]
    return [(weakref.ref(t), t._version) for t in tensors if not t.is_inference()]


def _have_changed(given: _Versions) -> bool:
    return any((t := reference()) is not None and t._version != v for reference, v in given)


def _is_cache(value: Any) -> bool:
    return hasattr(value, "get_seq_length") and hasattr(value, "update")


class _Call:
    """One call of a checkpointed module: saves the state before it, to restore it."""

    def __init__(self, block: _Block, module: torch.nn.Module | _Reached) -> None:
        self.block = block
        self.parts = list(module.modules())
        # An error leaves the first forward incomplete: ignore it.
        self.first = _Context(self._begin, self._end, on_error=False)
        self.again = _Context(self._restore, self._put_back)
        self.originals: list[tuple[dict, str, torch.Tensor]] = []
        self.given: _Versions = []

    # ---- the first forward ----

    def _begin(self) -> None:
        self.modes = [part.training for part in self.parts]
        self.kernels = attention_kernels()
        self.parameters = self._parameter_versions()
        self.random = RandomStates()
        self.before = self._copies(self.block.read)
        if self.block.read is None:
            self.versions = {key: self._buffer(key)._version for key in self.before}

    def _end(self) -> None:
        self.random.keep_if_drawn()
        if self.block.read is None:
            self.block.read = {
                key
                for key, copy in self.before.items()
                if self._buffer(key)._version != self.versions[key]
                # Kernels that update statistics do not count as changes.
                or (
                    (copy.dim() == 1 and copy.is_floating_point())
                    and not torch.equal(self._buffer(key), copy)
                )
            }
            self.before = {key: self.before[key] for key in self.block.read}

    def _copies(self, chosen: set[tuple[int, str]] | None) -> dict[tuple[int, str], torch.Tensor]:
        """Buffers as they are now: those `chosen`, or all but statistics."""
        if chosen is None:
            chosen = {
                (number, name)
                for number, part in enumerate(self.parts)
                if not isinstance(part, NORMS)
                for name, buffer in part._buffers.items()
                if buffer is not None
            }
        return {key: self._buffer(key).detach().clone() for key in chosen}

    def _buffer(self, key: tuple[int, str]) -> torch.Tensor:
        number, name = key
        return self.parts[number]._buffers[name]  # type: ignore[return-value]

    def _parameter_versions(self) -> list[int]:
        return [
            p._version for part in self.parts for p in part._parameters.values() if p is not None
        ]

    # ---- the second ----

    def _restore(self) -> None:
        if self._parameter_versions() != self.parameters:
            raise failure(
                "checkpoint",
                f"parameters of {self.block.name} were changed between its forward and its backward "
                "pass, so that it cannot be computed again as it was",
                self.block.name,
            )
        # `x += block(x)`: autograd itself notices only where the block saves x.
        if _have_changed(self.given):
            raise failure(
                "checkpoint",
                f"the input of {self.block.name} changed in place between its forward and its "
                "backward pass, so it cannot be recomputed: leave it out of the plan, or "
                "checkpoint the module around it",
                self.block.name,
            )
        self.block.recomputed += 1
        try:
            self._go_back()
        except BaseException:  # memory, most likely: `_put_back` is not called then
            self._put_back()
            raise

    def _go_back(self) -> None:
        self.outer = attention_kernels(), [part.training for part in self.parts]
        set_attention_kernels(self.kernels)
        self._set_modes(self.modes)
        # It runs on copies of the buffers, so that nothing is updated twice.
        for key, copy in self.before.items():
            self._swap(self.parts[key[0]], key[1], copy)
        for part in self.parts:
            if isinstance(part, NORMS) and part.training:
                for name, buffer in part._buffers.items():
                    if buffer is not None:
                        self._swap(part, name, buffer.clone())
        self.random.restore()

    def _put_back(self) -> None:
        self.random.put_back()
        for buffers, name, original in self.originals:
            buffers[name] = original
        self.originals.clear()
        kernels, modes = self.outer
        self._set_modes(modes)
        set_attention_kernels(kernels)

    def _swap(self, part: torch.nn.Module, name: str, copy: torch.Tensor) -> None:
        self.originals.append((part._buffers, name, part._buffers[name]))
        part._buffers[name] = copy

    def _set_modes(self, modes: list[bool]) -> None:
        for part, mode in zip(self.parts, modes, strict=True):
            if part.training != mode:
                part.training = mode


class _Context:
    """A context manager of two functions; `on_error` says whether an error calls the second too."""

    def __init__(
        self, enter: Callable[[], None], leave: Callable[[], None], on_error: bool = True
    ) -> None:
        self._enter, self._leave, self._on_error = enter, leave, on_error

    def __enter__(self) -> None:
        self._enter()

    def __exit__(self, *error: Any) -> None:
        if self._on_error or error[0] is None:
            self._leave()


LEVER = Checkpoint
