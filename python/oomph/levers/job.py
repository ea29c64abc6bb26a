"""What a script does that levers want to know: its models, its optimizers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim


class Job:
    """Calls back when a script makes an optimizer or first calls a model. Lists are in order of installation."""

    def __init__(self) -> None:
        """Nothing is watched before `watch`."""
        self.on_model: list[Callable[[torch.nn.Module, dict[str, torch.nn.Module]], None]] = []
        """Called once per outermost module, just before its first forward, with the module and its
        parts by name: the class of the outermost, then the path of `named_modules()`, as the
        recorder and the plan file name them (`GPT`, `GPT.blocks.0`)."""
        self.on_optimizer: list[Callable[[torch.optim.Optimizer], None]] = []
        """Called with each optimizer when it has been constructed."""
        self._known: set[int] = set()
        self._depth = 0

    def watch(self) -> None:
        """Begin to watch."""
        nn_module.register_module_forward_pre_hook(self._enter)
        nn_module.register_module_forward_hook(self._leave, always_call=True)
        self._watch_optimizers()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        self._depth += 1
        if self._depth > 1 or id(module) in self._known:
            return
        self._known.add(id(module))
        named = names(module)
        for callback in self.on_model:
            callback(module, named)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1

    def _watch_optimizers(self) -> None:
        original = optim.Optimizer.__init__

        @functools.wraps(original)
        def initialize(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            for callback in self.on_optimizer:
                callback(optimizer)

        optim.Optimizer.__init__ = initialize  # type: ignore[method-assign]


def names(root: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The modules of `root` by the names that plans use: `Title`, `Title.path`."""
    title = type(root).__name__
    return {f"{title}.{name}" if name else title: m for name, m in root.named_modules()}
