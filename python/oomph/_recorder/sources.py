"""The files that a script's steps follow from: the user's modules, and configuration that it reads."""

from __future__ import annotations

import ast
import os
import re
import sys
from typing import Any

from oomph._user_code import is_user_file

_CONFIGURATION = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf", ".gin")
_MOST = 200
"""Configuration files that are noted: a data set may have as many files of that kind as it likes."""

_RECOMPUTES = re.compile(r"\.utils\.checkpoint\b|\.checkpoint_wrapper\b")
"""In the full names of what recomputes activations."""

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


def use_checkpointing(files: list[str]) -> bool:
    """Whether modules among `files` import or name what recomputes activations in backward."""
    return any(map(_uses_checkpointing, files))


def _uses_checkpointing(name: str) -> bool:
    text = _module(name)
    if b"torch" not in text or b"checkpoint" not in text:
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{one.name}" for one in node.names]
        elif isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)] if node.attr == "checkpoint" else []
        else:
            continue
        if any(one.startswith("torch.") and _RECOMPUTES.search(one) for one in names):
            return True
    return False


def go_backward(files: list[str]) -> bool:
    """Whether modules among `files` call for a backward pass, now or later on."""
    return any(b".backward(" in _module(name) for name in files)


def _module(name: str) -> bytes:
    """The text of a module; nothing of other files, and of one that cannot be read."""
    if not name.endswith(".py"):
        return b""
    try:
        with open(name, "rb") as file:
            return file.read()
    except OSError:
        return b""


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
