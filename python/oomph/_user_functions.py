"""The user's own functions, found where scripts keep them and wrapped there: code without modules is made of them.

Plans and records name one by its qualified name and `()`; one that is not in the script itself has its module's name in front.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import optimizer as optim

from oomph._user_code import is_user_file

Wrap = Callable[[str, types.FunctionType], "types.FunctionType | None"]
"""Given a function's name and itself, makes what stands in its place; None leaves it alone."""

ENDING = "()"
"""Ends the names of functions among those of modules."""

_CHANGING = {
    "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove", "reverse",
    "setdefault", "update", "write", "writelines", "send", "put", "step", "zero_grad", "backward",
}  # fmt: skip
"""Methods that change what is not the function's own, called a second time."""

_DOING = {
    "delattr", "eval", "exec", "globals", "grad", "hessian", "input", "jacfwd", "jacrev", "jvp", "next", "open", "print", "setattr",
    "vjp",
}  # fmt: skip
"""Functions that do what must not be done twice, or that PyTorch lets nobody recompute."""


_wraps: list[Wrap] = []
"""The innermost first."""
_looks = 0
MOST_LOOKS = 6
"""How often functions are looked for."""


def watch(wrap: Wrap, outside: bool = False) -> None:
    """From now on let what `wrap` makes stand in the place of functions; with `outside`, around what others make.

    What holds a function otherwise, such as a list or a closure, keeps it as it is. Nobody knows when a script has made all of its
    functions: they are looked for when it makes an optimizer, and when its first backward passes begin.
    """
    if not _wraps:
        _look_before(optim.Optimizer, "__init__")
        _look_before(torch.autograd, "backward")
    _wraps.insert(len(_wraps) if outside else 0, wrap)


def leave(wrap: Wrap) -> None:
    """Put back what `watch` replaced."""
    _wraps.remove(wrap)
    for owner in _owners():
        for attribute, value in list(vars(owner).items()):
            function = original_of(value)
            if function is not value:
                setattr(owner, attribute, _wrapped(function) or function)


def _look_before(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        global _looks
        if _wraps and _looks < MOST_LOOKS and not torch.compiler.is_compiling():
            _looks += 1
            _wrap_all()
        return original(*args, **kwargs)

    setattr(owner, name, watched)


def _wrap_all() -> None:
    made: dict[types.FunctionType, types.FunctionType | None] = {}
    for owner in _owners():
        for attribute, function in list(vars(owner).items()):
            if not _is_function(function) or not _is_the_users(function):
                continue
            if function not in made:
                made[function] = _wrapped(function)
            replacement = made[function]
            if replacement is not None:
                setattr(owner, attribute, replacement)


def _wrapped(function: types.FunctionType) -> types.FunctionType | None:
    """What stands in its place; None if nobody wants it."""
    outer = function
    for wrap in _wraps:
        outer = wrap(_name(function), outer) or outer
    if outer is function:
        return None
    outer._oomph_original = function  # type: ignore[attr-defined]
    return outer


def original_of(value: Any) -> Any:
    """The user's function, where `value` stands in its place."""
    return vars(value).get("_oomph_original", value) if _is_function(value) else value


def _is_function(value: Any) -> bool:
    return isinstance(value, types.FunctionType)


def _is_the_users(function: types.FunctionType) -> bool:
    """Whether it is the user's and nobody has wrapped it for oomph."""
    name = function.__name__
    return (
        is_user_file(function.__code__.co_filename)
        and "_oomph_original" not in vars(function)
        and (not name.startswith("__") or name == "__call__")
        and not function.__code__.co_flags & _RESUMED
    )


_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Of functions that go on where they were."""


def _name(function: types.FunctionType) -> str:
    module = function.__module__
    place = "" if module == "__main__" else f"{module}."
    return f"{place}{function.__qualname__}{ENDING}"


def _owners() -> Iterator[Any]:
    """Modules of the user's, and the classes in them that derive from no library's."""
    for title, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        names = getattr(module, "__dict__", None)
        if title != "__main__" and not (isinstance(file, str) and is_user_file(file)):
            continue
        if not isinstance(names, dict) or title.startswith("oomph"):
            continue
        yield module
        for kind in list(names.values()):
            if (
                isinstance(kind, type)
                and kind.__module__ == title
                and all(base.__module__ == title or base is object for base in kind.__mro__)
            ):
                yield kind


# ---- which can be called again ----


def may_be_repeated(function: types.FunctionType) -> bool:
    """Whether its source shows nothing that a second call would do twice.

    Of what it calls, the user's functions that it names are looked at, too; what it is given to call is not.
    """
    return _may_be_repeated(function, set())


def _may_be_repeated(function: types.FunctionType, seen: set[types.FunctionType]) -> bool:
    function = original_of(function)
    if function in seen:
        return True
    seen.add(function)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    if not tree.body or not isinstance(tree.body[0], ast.FunctionDef):
        return False
    return _Look(function, tree.body[0]).is_clear and all(
        _may_be_repeated(other, seen) for other in _called(function)
    )


def _called(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """The user's functions that a function names."""
    names = function.__code__.co_names
    owner = function.__globals__.get(function.__qualname__.rpartition(".")[0])
    found = [function.__globals__.get(name) for name in names]
    for place in (*found, owner):
        if isinstance(place, (types.ModuleType, type)):
            found += [vars(place).get(name) for name in names]
    for value in map(original_of, found):
        if _is_function(value) and is_user_file(value.__code__.co_filename):
            yield value


class _Look(ast.NodeVisitor):
    """Looks for what a second call would do twice."""

    def __init__(self, function: types.FunctionType, tree: ast.FunctionDef) -> None:
        self.is_clear = True
        arguments = inspect.getfullargspec(function)
        given = {*arguments.args, *arguments.kwonlyargs, arguments.varargs, arguments.varkw}
        self._own = set(function.__code__.co_varnames) - given
        """Variables that no caller has."""
        self._globals = function.__globals__
        for statement in tree.body:
            self.visit(statement)

    def _is_own(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._own

    def _set(self, target: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._set(part)
        elif isinstance(target, ast.Starred):
            self._set(target.value)
        elif not isinstance(target, ast.Name) and not (
            isinstance(target, ast.Subscript) and self._is_own(target.value)
        ):
            self.is_clear = False

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._set(target)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._set(node.target)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        # In place, on what it was given.
        if not self._is_own(node.target):
            self._set(node.target)
            self.is_clear = self.is_clear and not isinstance(node.target, ast.Name)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Name):
            self.is_clear = self.is_clear and function.id not in _DOING
        elif isinstance(function, ast.Attribute):
            name = function.attr
            changes = name in _CHANGING and not self._is_own(function.value)
            in_place = name.endswith("_") and not name.endswith("__")
            if name in _DOING or changes or (in_place and not self._is_own_tensor(function.value)):
                self.is_clear = False
        # A generator's state would go on.
        if any(keyword.arg == "generator" for keyword in node.keywords):
            self.is_clear = False
        self.generic_visit(node)

    def _is_own_tensor(self, node: ast.expr) -> bool:
        """What is made here, or a part of it."""
        while isinstance(node, (ast.Subscript, ast.Attribute)):
            node = node.value
        return self._is_own(node) or isinstance(node, ast.Call)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id not in self._own and isinstance(self._globals.get(node.id), torch.Generator):
            self.is_clear = False

    def _no(self, node: ast.AST) -> None:
        self.is_clear = False

    visit_Global = visit_Nonlocal = visit_Delete = visit_Yield = visit_YieldFrom = visit_Await = _no


def reached(
    function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[torch.nn.Module], list[torch.Tensor]]:
    """The modules and tensors that a call can reach: in arguments, in attributes of its object, in global variables that it names."""
    modules: dict[int, torch.nn.Module] = {}
    tensors: dict[int, torch.Tensor] = {}

    def add(value: Any, depth: int = 0) -> None:
        if isinstance(value, torch.Tensor):
            tensors[id(value)] = value
        elif isinstance(value, torch.nn.Module):
            for part in value.modules():
                modules.setdefault(id(part), part)
        elif depth < 3 and isinstance(value, (list, tuple, set)):
            for part in value:
                add(part, depth + 1)
        elif depth < 3 and isinstance(value, dict):
            for part in value.values():
                add(part, depth + 1)
        elif depth < 1 and type(value).__module__ == function.__module__:
            add(getattr(value, "__dict__", {}), depth + 1)

    for value in (*args, *kwargs.values(), *_named(function)):
        add(value)
    return list(modules.values()), list(tensors.values())


def _named(function: types.FunctionType) -> list[Any]:
    """The values of global variables that it names, or that the user's functions name which it calls."""
    seen: set[types.FunctionType] = set()
    waiting, values = [function], []
    while waiting:
        one = waiting.pop()
        one = original_of(one)
        if one in seen:
            continue
        seen.add(one)
        values += [
            one.__globals__[name] for name in one.__code__.co_names if name in one.__globals__
        ]
        waiting += _called(one)
    return values


def in_transform() -> bool:
    """Whether `torch.func` is at work, whose transforms no hook on saved tensors may meet."""
    peek = torch._C._functorch.peek_interpreter_stack
    return peek() is not None
