"""Steps in when the script imports a module."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


def on_import(name: str, then: Callable[[Any], None]) -> None:
    """Call `then` with module `name` when the script has imported it; at once if it has."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, after=then))


def before_import(name: str, first: Callable[[], None]) -> None:
    """Call `first` when the script imports module `name`, before the module's own code runs."""
    sys.meta_path.insert(0, _Finder(name, before=first))


def around_import(name: str, within: Callable[[], Any]) -> None:
    """Have the script import module `name`, and what that imports, within the context manager that `within` gives."""
    if name not in sys.modules:
        sys.meta_path.insert(0, _Finder(name, within=within))


def was_imported(name: str, module: Any) -> bool:
    """Module `name`, which was imported before this process was forked, is there from now on; whether anything waited."""
    waiting = [
        finder for finder in sys.meta_path if isinstance(finder, _Finder) and finder.name == name
    ]
    for finder in waiting:
        sys.meta_path.remove(finder)
        finder.before()
    sys.modules[name] = module
    for finder in reversed(waiting):
        finder.after(module)
    return bool(waiting)


class _Finder:
    """Waits for one module on `sys.meta_path`, and goes when it is imported.

    Libraries ask whether a module is there (`importlib.util.find_spec`) without importing it: each
    answer is watched, and only one that is executed counts.
    """

    def __init__(
        self,
        name: str,
        before: Callable[[], None] = lambda: None,
        after: Callable[[Any], None] = lambda module: None,
        within: Callable[[], Any] = contextlib.nullcontext,
    ) -> None:
        self.name, self.before, self.after, self.within = name, before, after, within
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            self.before()
            with self.within():
                execute(module)
            self.after(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
