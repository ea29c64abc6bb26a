"""The files that a script's steps follow from: the user's modules, and configuration that it reads."""

from __future__ import annotations

import os
import sys
from typing import Any

from oomph._user_code import is_user_file

_CONFIGURATION = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf", ".gin")
_MOST = 200
"""Configuration files that are noted: a data set may have as many files of that kind as it likes."""

_read: dict[str, None] = {}


def watch() -> None:
    """Note the configuration files that are read from now on. What watches cannot be removed again."""
    sys.addaudithook(_opened)


def _opened(event: str, args: tuple[Any, ...]) -> None:
    if event != "open" or len(_read) >= _MOST:
        return
    path, mode = args[0], args[1]
    if isinstance(path, str) and path.endswith(_CONFIGURATION) and mode in ("r", "rb", "rt"):
        _read.setdefault(os.path.abspath(path))


def sources(own: str) -> list[str]:
    """Those of them that are there: modules that are imported, files that were read, none below `own`."""
    names = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    modules = {os.path.abspath(n) for n in names if isinstance(n, str) and n.endswith(".py")}
    found = modules.union(_read)
    return sorted(
        name
        for name in found
        if is_user_file(name) and not name.startswith(own + os.sep) and os.path.isfile(name)
    )
