"""How many steps a script would take in all, as far as its loops say so.

Python tells nobody how far a `for` loop has to go. So the loops around a step are read in the source of
each function that is running, and what they go over is looked up, not computed: names, attributes, numbers
and their sums. A loop that may end early, or that goes over anything else, makes the number unknown.
"""

from __future__ import annotations

import ast
import linecache
import operator
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from oomph._user_code import OWN_DIRECTORY, local

_WITHOUT_LOOPS = (os.path.dirname(os.path.abspath(str(torch.__file__))) + os.sep, OWN_DIRECTORY)
"""Code of PyTorch's and of oomph's stands between a step and the loop that makes it."""

_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class _Unknown(Exception):
    """The number of steps cannot be told."""


def planned_steps() -> int | None:
    """The steps of the whole script, called within one of them; None if its loops do not tell."""
    total: int | None = None
    try:
        for frame in _frames():
            known = _by_framework(frame)
            if known is not None:
                return known
            for loop in _loops(frame):
                total = (total or 1) * _length(loop.iter, frame)
    except Exception:  # also whatever the script's own objects raise when they are looked at
        return None
    return total


def _frames() -> Iterator[FrameType]:
    """The frames that may have loops around a step, from the innermost up to the script."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(("<frozen", *_WITHOUT_LOOPS)):
            yield frame
        if frame.f_code.co_name == "<module>":
            return
        frame = frame.f_back


def _by_framework(frame: FrameType) -> int | None:
    """What Transformers' Trainer or Lightning's has computed, in a frame of theirs."""
    module = frame.f_globals.get("__name__", "")
    owner = local(frame, "self")
    if module == "transformers.trainer":
        steps = getattr(getattr(owner, "state", None), "max_steps", 0)
    elif module.endswith("pytorch.loops.fit_loop"):
        steps = getattr(getattr(owner, "trainer", None), "estimated_stepping_batches", 0)
    else:
        return None
    return steps if isinstance(steps, int) and steps > 0 else None


def _loops(frame: FrameType) -> list[ast.For]:
    """The loops of this function that are running now, which go on to their ends."""
    code = frame.f_code
    tree = function_at(code.co_filename, code.co_firstlineno, code.co_name)
    if tree is None:
        if code.co_filename.startswith("<"):
            return []  # generated code: a wrapper
        raise _Unknown
    return _around(tree, frame.f_lineno)


def function_at(path: str, line: int, name: str) -> ast.AST | None:
    """The source of the function `name` that begins in `line` of a file, or of the whole file; None if there is none."""
    lines = linecache.getlines(path)
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):
        return None
    if name == "<module>":
        return tree if lines else None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            decorators = getattr(node, "decorator_list", [])
            if min([node.lineno, *(d.lineno for d in decorators)]) == line:
                return node
    return None


def _around(tree: ast.AST, line: int) -> list[ast.For]:
    """Loops around `line`, from the outermost; not those of functions that are defined in between."""
    found: list[ast.For] = []
    node: ast.AST | None = tree
    inside_loop = False
    while node is not None:
        inner = next(
            (
                child
                for child in ast.iter_child_nodes(node)
                if isinstance(child, (ast.stmt, ast.ExceptHandler))
                and child.lineno <= line <= (child.end_lineno or child.lineno)
            ),
            None,
        )
        if isinstance(inner, ast.For) and inner.body[0].lineno <= line:
            if _may_end_early(inner):
                raise _Unknown
            found.append(inner)
            inside_loop = True
        elif isinstance(inner, ast.While) or (inside_loop and isinstance(inner, (ast.If, ast.Try))):
            # A step that is not made in each turn, or repeated until something happens.
            raise _Unknown
        node = inner
    return found


def _may_end_early(loop: ast.For) -> bool:
    nodes: list[ast.AST] = list(loop.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.Break, ast.Return, ast.Raise)):
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("exit", "sys.exit", "quit"):
            return True
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            nodes += ast.iter_child_nodes(node)
    return False


def _length(over: ast.expr, frame: FrameType) -> int:
    """How many turns a loop over this takes."""
    if isinstance(over, ast.Call):
        name = ast.unparse(over.func).rpartition(".")[2]
        if name in ("range", "trange"):
            numbers = [_value(argument, frame) for argument in over.args]
            if over.args and all(isinstance(number, int) for number in numbers):
                return len(range(*numbers))
        elif name in ("enumerate", "tqdm", "track") and over.args:
            return _length(over.args[0], frame)
        elif name == "zip" and over.args:
            return min(_length(argument, frame) for argument in over.args)
        raise _Unknown
    return len(_value(over, frame))


def _value(node: ast.expr, frame: FrameType) -> Any:
    """What an expression stands for, without calling anything but `len`."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return node.elts
    if isinstance(node, ast.Name):
        value = local(frame, node.id, frame.f_globals.get(node.id, _Unknown))
        if value is not _Unknown:
            return value
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), node.attr, None)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, frame), _value(node.right, frame)
        if isinstance(left, int) and isinstance(right, int):
            return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and len(node.args) == 1:
        return _length(node.args[0], frame)
    raise _Unknown
