"""Wraps the forward of chosen modules only.

Replaces the class's `forward` once, which checks whether this module was chosen. An attribute of the
module would be copied with it (`deepcopy`, EMA, `torch.save`) and call the original's forward.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

Around = Callable[[torch.nn.Module, Callable[..., Any], tuple, dict], Any]
"""`around(module, forward, args, kwargs)` calls `forward(*args, **kwargs)` and returns its output."""

_chosen: dict[int, list[tuple[int, Around]]] = {}
"""By the `id` of the module, removed when the module is freed: a `WeakKeyDictionary` takes ten times
as long, and every module of the class looks it up in each call."""
_inside: set[int] = set()
"""Modules whose own forward is running: what it calls of its base class is the same call."""


class ForwardHandle:
    """The wrapper that `around_forward` put around a module's forward."""

    def __init__(self, module: torch.nn.Module, entry: tuple[int, Around]) -> None:
        """Keeps neither of them alive longer than the module."""
        self._module, self._entry = weakref.ref(module), entry

    def remove(self) -> None:
        """Remove it. The class's forward still looks it up in each call."""
        module = self._module()
        functions = _chosen.get(id(module)) if module is not None else None
        if functions is not None and self._entry in functions:
            functions.remove(self._entry)


def around_forward(module: torch.nn.Module, around: Around, order: int) -> ForwardHandle:
    """Wrap `around` around the forward of `module`; of several, the lowest `order` is the outermost."""
    functions = _chosen.get(id(module))
    if functions is None:
        functions = _chosen[id(module)] = []
        weakref.finalize(module, _chosen.pop, id(module)).atexit = False
    entry = (order, around)
    functions.append(entry)
    functions.sort(key=lambda entry: entry[0])
    own = vars(module).get("forward")
    if own is None:
        kind = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
        if "_oomph_watched" not in vars(kind.forward):
            kind.forward = _watched(kind.forward)
    elif "_oomph_watched" not in vars(getattr(own, "__func__", own)):
        # accelerate or the script gave this module its own forward.
        def forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            return own(*args, **kwargs)

        module.forward = types.MethodType(_watched(functools.wraps(own)(forward)), module)
    return ForwardHandle(module, entry)


def arounds(module: torch.nn.Module) -> list[Around]:
    """The wrappers around the forward of `module`, the outermost first."""
    return [around for _, around in _chosen.get(id(module), [])]


def _watched(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        functions = _chosen.get(id(module))
        if not functions or id(module) in _inside:
            return original(module, *args, **kwargs)

        def call(*args: Any, **kwargs: Any) -> Any:
            # Again in the recomputation, which comes back to here.
            _inside.add(id(module))
            try:
                return original(module, *args, **kwargs)
            finally:
                _inside.discard(id(module))

        for _, around in reversed(functions):
            call = functools.partial(_step_in, around, module, call)
        return call(*args, **kwargs)

    forward._oomph_watched = True  # type: ignore[attr-defined]
    return forward


def _step_in(around: Around, module: torch.nn.Module, call: Any, *args: Any, **kwargs: Any) -> Any:
    return around(module, call, args, kwargs)


class NamedModules:
    """The modules that a plan names, and which of them the script has."""

    def __init__(self, names: list[str]) -> None:
        """`names` as in the plan file."""
        self.missing = list(names)
        self._wanted = set(names)

    def take(self, named: dict[str, torch.nn.Module]) -> dict[str, torch.nn.Module]:
        """Those of `named` that the plan names; each module once, under its first name."""
        found: dict[int, tuple[str, torch.nn.Module]] = {}
        for name, module in named.items():
            if name in self._wanted:
                found.setdefault(id(module), (name, module))
                if name in self.missing:
                    self.missing.remove(name)
        return dict(found.values())

    def problem(self) -> str | None:
        """The note about names that no model of the script has."""
        if not self.missing:
            return None
        first = ", ".join(self.missing[:3]) + (", …" if len(self.missing) > 3 else "")
        return f"{len(self.missing)} of the plan's modules are not in this script: {first}"
