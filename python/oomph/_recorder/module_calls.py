"""Which modules are running, and what each call of the first steps was given and gave."""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as nn_module
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from oomph import _torch_features as torch_features
from oomph._recorder.addresses import addresses, cuda_tensors
from oomph._recorder.facts import Facts
from oomph._recorder.function_calls import FunctionCalls
from oomph._recorder.marks import Marks
from oomph._recorder.outermost_models import OutermostModels, builds_graph_in_evaluation
from oomph._recorder.passes import Passes
from oomph._recorder.progress import MARKED_STEPS, Progress
from oomph._untraced import untraced
from oomph._user_code import local

_in_backward = torch._C._current_graph_task_id

MOST_CALLS = 100_000
"""Calls of evaluations in later steps are kept up to this number."""


class ModuleCalls:
    """Watches all calls of modules in the thread that runs the script."""

    def __init__(self, progress: Progress, passes: Passes, facts: Facts, marks: Marks) -> None:
        """Nothing is watched before `watch`."""
        self._progress, self._passes = progress, passes
        self._facts, self._marks = facts, marks
        self.calls: list[list[Any]] = [["", 0, [], []]]
        """Of each call: the name of the module or function, the call around it, addresses of arguments and of results.

        A call's number is its place; the first is none.
        """
        self.functions = FunctionCalls(progress, self.calls)
        self.models = OutermostModels()
        """The outermost models that were called."""
        self._kept = True
        """Whether the calls inside the outermost one are kept."""
        self._names: dict[int, str] = {}
        self._named: dict[int, weakref.ref[torch.nn.Module]] = {}
        """Weak: an observer must not keep objects alive. Another module may come to stand where one was."""
        self._hooks: list[Any] = []
        self._counts = True
        """Whether the outermost call that is running is a pass of the script."""
        self._lazy: torch.nn.Module | None = None
        """The model that is running, if it learns the shapes of its parameters meanwhile."""
        self._thread = threading.get_ident()

    def watch(self) -> None:
        """Begin to watch."""
        with_kwargs = {"with_kwargs": True} if torch_features.has("hooks_with_kwargs") else {}
        self._hooks = [
            nn_module.register_module_forward_pre_hook(self._enter),
            nn_module.register_module_forward_hook(self._leave, always_call=True, **with_kwargs),
        ]
        self.functions.watch()

    def forget(self) -> None:
        """A part of the script begins, in the thread that calls: number its calls anew."""
        self._thread = threading.get_ident()
        del self.calls[1:]
        self._progress.functions.clear()
        self.models = OutermostModels()
        self._progress.running.clear()

    def stop(self) -> bool:
        """Remove the hooks; whether they were there."""
        watched = bool(self._hooks)
        for hook in self._hooks:
            hook.remove()
            # PyTorch leaves this entry there, by which a compiled module takes the hook for one that runs, and warns.
            getattr(nn_module, "_global_forward_hooks_with_kwargs", {}).pop(hook.id, None)
        self._hooks = []
        self._progress.running.clear()
        self.functions.stop()
        return watched

    def _enter(self, module: torch.nn.Module, args: tuple) -> None:
        if torch.compiler.is_compiling():
            return  # an export or Dynamo traces: nothing is computed, sizes are symbols, and this would be traced, too
        progress = self._progress
        running = progress.running
        progress.module_calls += 1
        if not running and (threading.get_ident() != self._thread or _in_backward() != -1):
            return  # a part of a model, which the backward pass calls again
        name = self._names.get(id(module))
        if name is None and running:
            name = f"{running[-1][0]}.{type(module).__name__}"
            self._name(module, name)
        if not running:
            # What is looked at here is no part of a trace.
            with untraced():
                if name is None:
                    name = self._learn(module)
                    self._name(module, name)
                self._counts = self._lazy is None and not (
                    _is_fake(args) or _is_construction(module)
                )
                self._kept = progress.step < MARKED_STEPS or (
                    builds_graph_in_evaluation(module) and len(self.calls) < MOST_CALLS
                )
                if self._counts:
                    self.models.called(module, name, args, len(self.calls) if self._kept else 0)
                    self._passes.begin(module, args)
        call = 0
        if self._kept:
            call = len(self.calls)
            parent = running[-1][1] if running else self.functions.around
            self.calls.append([name, parent, addresses(args), []])
        running.append((name, call))

    def _leave(self, module: torch.nn.Module, args: tuple, *rest: Any) -> None:
        if torch.compiler.is_compiling():
            return
        # PyTorch leaves the keyword arguments out where the module raised.
        kwargs, output = rest if len(rest) == 2 else (None, *rest)
        running = self._progress.running
        if not running:
            return
        _, call = running.pop()
        if call and output is not None:
            self.calls[call][3] = addresses(output)
        if running:
            return
        with untraced():
            if self._lazy is not None and output is not None:
                self._describe(self._lazy)
                self._lazy = None
            if self._counts:
                if kwargs is None and output is not None:
                    kwargs = local(sys._getframe(1), "kwargs")
                self._passes.end(args, kwargs or {}, output)

    def name_of(self, module: torch.nn.Module) -> str:
        """A module's name; "" if it has none yet."""
        return self._names.get(id(module), "")

    def _name(self, module: torch.nn.Module, name: str) -> None:
        key = id(module)
        self._names[key] = name
        self._named[key] = weakref.ref(module, lambda _: self._forget(key))

    def _forget(self, key: int) -> None:
        self._names.pop(key, None)
        self._named.pop(key, None)

    def _learn(self, root: torch.nn.Module) -> str:
        """Name a model's modules and mark its parameters; returns the model's own name."""
        title = type(root).__name__
        for name, module in root.named_modules():
            if id(module) not in self._names:
                self._name(module, f"{title}.{name}" if name else title)
        if any(map(is_lazy, (*root.parameters(), *root.buffers()))):
            self._lazy = root
        else:
            self._describe(root)
        return title

    def _describe(self, root: torch.nn.Module) -> None:
        self._facts.model(root)
        self._marks.add_model(root)


def _is_fake(args: tuple) -> bool:
    """Whether a call only shows what a model does: nothing is computed."""
    return any(isinstance(t, FakeTensor) for t in cuda_tensors(args))


def _is_construction(module: torch.nn.Module) -> bool:
    """Whether an outermost call of `module` only builds or prepares a model.

    A parametrized weight (`weight_norm`) is computed by a module whenever it is read, and some models
    call their parts while they are made.
    """
    if isinstance(module, ParametrizationList):
        return True
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and code.co_argcount:
            owner = local(frame, code.co_varnames[0])
            if isinstance(owner, torch.nn.Module):
                return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
