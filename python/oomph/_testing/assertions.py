"""Whether a value that a program reads may decide how its test ends.

Values pass through functions and variables where nobody can follow them, so the answer errs on the safe side: it is yes
within an assertion, and in a test, or a function of test code, that makes any or calls one that does. It is no where the
value is only printed or logged.
"""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from oomph._user_code import is_user_file

_ASSERTS = ("assert", "fail", "approx", "raises", "check", "verify", "expect")
"""Begin or are part of the names of functions that make assertions."""

_SAYS = (
    "print", "write", "info", "debug", "warning", "log", "log_dict", "log_metrics", "log_scalar", "add_scalar",
    "set_postfix", "set_description", "echo",
)  # fmt: skip
"""Functions that say a value to people, by the last part of their names."""

_LIBRARIES = ("torch.testing", "unittest.case", "numpy.testing", "_pytest.python_api")
"""Modules that compare values for assertions."""

_ABOUT_MEMORY = (
    "gpu_memory", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "mem_get_info",
    "memory_stats",
)  # fmt: skip
"""In an assertion about memory, whose figures are real."""


class _Function(NamedTuple):
    """A function of a source file: its lines, whether it makes assertions, what it calls."""

    first: int
    last: int
    decides: bool
    calls: tuple[str, ...]


class _Lines:
    """What the lines of a source file are part of."""

    def __init__(self, path: str) -> None:
        self.asserted: set[int] = set()
        self.said: set[int] = set()
        self._functions: list[_Function] = []
        self._decides: dict[int, bool] = {}
        try:
            tree = ast.parse("".join(linecache.getlines(path)))
        except (SyntaxError, ValueError):
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert):
                self.asserted.update(_span(node))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                if _name(node.value.func) in _SAYS:
                    self.said.update(_span(node))
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                about_memory = _names_of_memory(node)
                inside = list(ast.walk(node))
                decides = any(_decides(one, about_memory) for one in inside)
                calls = {ast.unparse(one.func) for one in inside if isinstance(one, ast.Call)}
                first = min((one.lineno for one in node.decorator_list), default=node.lineno)
                last = node.end_lineno or node.lineno
                self._functions.append(_Function(first, last, decides, tuple(calls)))

    def decides(self, line: int, names: dict[str, Any], deep: int = 3) -> bool:
        """Whether the innermost function around `line`, or one of the user's that it calls, makes assertions.

        `names` are the globals of its module.
        """
        if line not in self._decides:
            around = [one for one in self._functions if one.first <= line <= one.last]
            function = min(around, key=lambda one: one.last - one.first, default=None)
            self._decides[line] = function is not None and (
                function.decides
                or any(_called_decides(call, names, deep) for call in function.calls)
            )
        return self._decides[line]


def _called_decides(call: str, names: dict[str, Any], deep: int) -> bool:
    first, *rest = call.split(".")
    found = names.get(first)
    for name in rest:
        # Of a module: looking into other objects would run their code.
        found = found.__dict__.get(name) if isinstance(found, ModuleType) else None
    if not isinstance(found, FunctionType) or not deep:
        return False
    code = found.__code__
    return is_user_file(code.co_filename) and _lines(code.co_filename).decides(
        code.co_firstlineno, found.__globals__, deep - 1
    )


def _span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _names_of_memory(function: ast.AST) -> set[str]:
    """Names of figures of memory in a function: the functions that give them, and variables made of those."""
    found = set(_ABOUT_MEMORY)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _mentions(node.value, found):
            found.update(
                one.id for t in node.targets for one in ast.walk(t) if isinstance(one, ast.Name)
            )
    return found


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(
        (isinstance(one, ast.Name) and one.id in names)
        or (isinstance(one, ast.Attribute) and one.attr in names)
        for one in ast.walk(node)
    )


def _decides(node: ast.AST, about_memory: set[str]) -> bool:
    if isinstance(node, ast.Raise):
        return True
    if isinstance(node, ast.Assert):
        return not _mentions(node, about_memory)
    if isinstance(node, ast.Call):
        name = _name(node.func).lower()
        return any(word in name for word in _ASSERTS)
    return False


_lines = functools.cache(_Lines)


@functools.cache
def _is_test_code(path: str) -> bool:
    """Whether a file is a test or helps tests, by the names of its last folders and its own."""
    names = path.split(os.sep)[-4:]
    return any(name.startswith(("test", "conftest")) or "_test" in name for name in names)


def may_decide(test: str) -> bool:
    """Whether the value that is being read in this thread may decide how the test in the file `test` ends."""
    frame: FrameType | None = sys._getframe(1)
    innermost = True
    while frame is not None:
        path, line = frame.f_code.co_filename, frame.f_lineno
        if innermost and frame.f_globals.get("__name__", "").startswith(_LIBRARIES):
            return True
        if is_user_file(path):
            lines = _lines(path)
            if innermost and line in lines.said and line not in lines.asserted:
                return False
            innermost = False
            if line in lines.asserted:
                return True
            if (path == test or _is_test_code(path)) and lines.decides(line, frame.f_globals):
                return True
        frame = frame.f_back
    # Autograd's threads have no frames of the program.
    return innermost
