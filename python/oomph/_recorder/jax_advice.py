"""What changes of a script would save JAX memory, from the programs that it compiles: lines and bytes."""

from __future__ import annotations

import ast
import contextlib
import linecache
import operator
import os
import sys
from types import FrameType
from typing import Any

from oomph._import_hooks import on_import
from oomph._user_code import is_user_file, local, user_line

_LEAST = 1 << 20
"""Advice for fewer bytes than this is not worth reading."""


class JaxAdvice:
    """Sees what the script compiles. Nothing of it is changed."""

    def __init__(self) -> None:
        """Nothing is watched before `watch`."""
        self.moved = 0
        """Bytes that XLA says the program with the most memory reads and writes."""
        self._most = 0
        self._program: dict[str, Any] = {}
        self._residuals: tuple[int, int, str] = (0, 0, "")
        """What a backward pass keeps at most: bytes, those of them in float32, and the line that differentiates."""

    def watch(self) -> None:
        """JAX is about to be imported."""
        on_import("jax._src.compiler", self._watch_compiler)
        on_import("jax._src.api", self._watch_residuals)

    def _watch_compiler(self, compiler: Any) -> None:
        original = compiler.backend_compile_and_load

        def compiled(*args: Any, **named: Any) -> Any:
            program = original(*args, **named)
            with contextlib.suppress(Exception):
                self._see(program)
            return program

        compiler.backend_compile_and_load = compiled

    def _watch_residuals(self, api: Any) -> None:
        original = api.VJP.__init__

        def begin(vjp: Any, *args: Any, **named: Any) -> None:
            original(vjp, *args, **named)
            with contextlib.suppress(Exception):
                kept = [(_bytes(one), one.dtype == "float32") for one in vjp.opaque_residuals]
                total = sum(size for size, _ in kept)
                if total > self._residuals[0]:
                    wide = sum(size for size, single in kept if single)
                    self._residuals = total, wide, user_line()

        api.VJP.__init__ = begin

    def _see(self, program: Any) -> None:
        stats = program.get_compiled_memory_stats()
        held = (stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
                - stats.alias_size_in_bytes)  # fmt: skip
        if held <= self._most:
            return
        self._most = held
        call = _Call.of_user()
        self._program = dict(
            output=stats.output_size_in_bytes, temporary=stats.temp_size_in_bytes, alias=stats.alias_size_in_bytes, line=user_line(),
            dead=call.dead if call else [], batch=call.batch if call else (0, ""),
        )  # fmt: skip
        costs = program.cost_analysis()
        costs = costs[0] if isinstance(costs, list) else costs
        # -1 of a program that is one call of a library.
        self.moved = max(0, int(costs.get("bytes accessed", 0)))

    def as_list(self) -> list[dict[str, Any]]:
        """All advice, that which saves most first."""
        found, program = [], self._program
        if program:
            dead = min(sum(size for _, size in program["dead"]), program["output"])
            saved = dead - program["alias"]
            names = ", ".join(name for name, _ in program["dead"])
            found.append(
                (f"donate {names} to the jitted function (donate_argnums), as the call replaces {'it' if len(program['dead']) == 1 else 'them'}", program["line"], saved)
            )  # fmt: skip
            samples, name = program["batch"]
            if samples > 1:
                what = f"half of the {samples} samples of {name} at once ({_short(program['temporary'] // samples)} of temporary memory each)"
                found.append((what, program["line"], program["temporary"] // 2))
        kept, wide, line = self._residuals
        kept = min(kept, program.get("temporary", 0))
        found.append(("jax.checkpoint around the repeated blocks, which computes again what the backward pass keeps", line, kept))  # fmt: skip
        found.append(("compute in bfloat16, as the backward pass keeps float32", line, min(wide, kept) // 2))  # fmt: skip
        found = [one for one in found if one[2] >= max(_LEAST, self._most // 100)]
        found.sort(key=lambda one: -one[2])
        return [dict(what=what, location=line, bytes=size) for what, line, size in found]


class _Call:
    """A call of the script with its arguments: `params, state = step(params, state, batch)`."""

    def __init__(self, dead: list[tuple[str, int]], batch: tuple[int, str]) -> None:
        self.dead = dead
        """Arguments that the statement assigns anew, and their bytes."""
        self.batch = batch
        """The length of the first axis that all arrays of another argument share, and its name."""

    @classmethod
    def of_user(cls) -> _Call | None:
        """The one that the innermost frame of the user's code is in, as far as its text tells."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_user_file(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return None
        code = frame.f_code
        tree = ast.parse("".join(linecache.getlines(os.path.realpath(code.co_filename))))
        inside = [
            node for node in ast.walk(tree)
            if isinstance(node, (ast.Assign, ast.Expr, ast.Return)) and node.lineno <= frame.f_lineno <= (node.end_lineno or 0)
        ]  # fmt: skip
        if not inside:
            return None
        statement = min(inside, key=lambda node: (node.end_lineno or 0) - node.lineno)
        calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
        targets = [name for target in getattr(statement, "targets", ()) for name in _names(target)]
        call = max(calls, key=lambda call: len([a for a in call.args if ast.unparse(a) in targets]), default=None)  # fmt: skip
        if call is None:
            return None
        dead, batch = [], (0, "")
        for argument in call.args:
            name = ast.unparse(argument)
            arrays = _arrays(_value(frame, name))
            if name in targets:
                dead.append((name, sum(map(_bytes, arrays))))
            else:
                lengths = {array.shape[0] if array.shape else 0 for array in arrays}
                if len(lengths) == 1:
                    batch = max(batch, (lengths.pop(), name))
        return cls(dead, batch)


def _names(target: ast.expr) -> list[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for element in target.elts for name in _names(element)]
    return [ast.unparse(target)]


def _value(frame: FrameType, name: str) -> Any:
    """The value of `name` or `name.attribute` in a frame; None for what is neither."""
    first, _, rest = name.partition(".")
    value = local(frame, first, frame.f_globals.get(first))
    with contextlib.suppress(AttributeError):
        return operator.attrgetter(rest)(value) if rest else value
    return None


def _arrays(tree: Any) -> list[Any]:
    leaves = sys.modules["jax"].tree_util.tree_leaves(tree)
    return [leaf for leaf in leaves if hasattr(leaf, "shape") and hasattr(leaf, "dtype")]


def _bytes(array: Any) -> int:
    size = int(array.dtype.itemsize)
    for length in array.shape:
        size *= int(length)
    return size


def _short(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB" if size < 1 << 30 else f"{size / 2**30:,.2f} GiB"
