"""Whether a script has still to train, as far as the source of what it has yet to run says.

Scripts compute targets, scores and features before they make an optimizer. Such passes are no steps: a run that ended after some
of them would not have seen what the script is for. So the statements that the running functions have yet to come to are read, and
the user's functions and classes that these name.
"""

from __future__ import annotations

import ast
import dis
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from oomph._recorder.planned_steps import function_at
from oomph._user_code import is_user_file, local

_TRAINS = {"backward"} | {
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
}
"""What training names: a backward pass, or an optimizer of PyTorch's."""
_BY_TRAINER = {"fit", "train"}
"""The methods of a framework's `Trainer` that train."""
_MOST = 1000
"""Functions and classes that are looked at."""

_known: dict[tuple[tuple[CodeType, int], ...], bool] = {}


def training_ahead() -> bool:
    """Whether a call that trains is ahead of this one. False where the source does not tell."""
    frames = list(_frames())
    place = tuple((frame.f_code, frame.f_lineno) for frame in frames)
    if place not in _known:
        try:
            _known[place] = _is_ahead(frames)
        except Exception:  # also whatever the script's own objects raise when they are looked at
            _known[place] = False
    return _known[place]


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _is_ahead(frames: list[FrameType]) -> bool:
    named = _Named()
    for frame in frames:
        code = frame.f_code
        tree = function_at(code.co_filename, code.co_firstlineno, code.co_name)
        if tree is None:
            continue
        for statement in _to_come(tree, frame.f_lineno):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    named.names.add(node.id)
                    named.values.append(local(frame, node.id))
                elif isinstance(node, ast.Attribute):
                    named.attributes.add(node.attr)
        named.values.append(local(frame, "self"))
        named.globals.append(frame.f_globals)
    return named.train()


def _to_come(tree: ast.AST, line: int) -> list[ast.stmt]:
    """The statements of a function that may run after the one at `line`: those behind it, and all of the loops around it."""
    around: list[tuple[ast.AST, list[ast.stmt]]] = []
    node: ast.AST | None = tree
    while node is not None:
        inner = None
        for _, block in ast.iter_fields(node):
            for at, child in enumerate(block if isinstance(block, list) else ()):
                if isinstance(child, (ast.stmt, ast.ExceptHandler)) and (
                    child.lineno <= line <= (child.end_lineno or child.lineno)
                ):
                    inner = child
                    around.append((node, block[at + 1 :]))
        node = inner
    found: list[ast.stmt] = []
    for parent, behind in reversed(around):
        for statement in behind:
            if isinstance(statement, (ast.Return, ast.Raise)):
                return found
            if isinstance(statement, ast.stmt):
                found.append(statement)
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)):
            found += parent.body
        elif isinstance(parent, ast.Try):
            found += [*parent.orelse, *parent.finalbody]
    return found


class _Named:
    """What code names, and what the user's functions and classes name that it names."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        """Variables, looked up in `globals`."""
        self.attributes: set[str] = set()
        """Looked up in the user's modules, classes and objects among `values`."""
        self.globals: list[dict[str, Any]] = []
        self.values: list[Any] = []
        """What the names stand for; each is looked at once."""
        self._owners: list[dict[str, Any]] = []
        self._seen: set[int] = set()
        self._by_trainer = False

    def train(self) -> bool:
        """Whether any of it trains."""
        looked_up: set[tuple[str, int]] = set()
        while not (self.names | self.attributes) & _TRAINS:
            for found, places in ((self.names, self.globals), (self.attributes, self._owners)):
                for place in places:
                    for name in found:
                        if (name, id(place)) not in looked_up:
                            looked_up.add((name, id(place)))
                            self.values.append(place.get(name))
            if not self.values or len(self._seen) > _MOST:
                return self._by_trainer and bool(self.attributes & _BY_TRAINER)
            self._look_at(self.values.pop())
        return True

    def _look_at(self, value: Any) -> None:
        if isinstance(value, (staticmethod, classmethod, MethodType)):
            value = value.__func__
        if value is None or id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, FunctionType):
            code = inspect.unwrap(value).__code__
            if is_user_file(code.co_filename):
                self._read(code)
                self.globals.append(value.__globals__)
        elif isinstance(value, ModuleType):
            if is_user_file(getattr(value, "__file__", None) or "<none>"):
                self._owners.append(vars(value))
        elif isinstance(value, type):
            self._look_at_class(value)
        else:
            self._look_at(type(value))
            if is_user_file(_file(type(value))):
                self._owners.append(getattr(value, "__dict__", {}))

    def _look_at_class(self, kind: type) -> None:
        for base in kind.__mro__:
            if is_user_file(_file(base)):
                self._owners.append(dict(vars(base)))
                self.values.append(vars(base).get("__init__"))
            elif base.__name__ == "Trainer":
                self._by_trainer = True

    def _read(self, code: CodeType) -> None:
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                self.names.add(instruction.argval)
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                self.attributes.add(instruction.argval)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._read(constant)


def _file(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<none>"
