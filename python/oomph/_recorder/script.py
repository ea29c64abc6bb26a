"""Runs a script, a module or a notebook as Python would."""

from __future__ import annotations

import importlib.util
import linecache
import os
import runpy
import sys
import traceback
import types
from collections.abc import Callable, Iterator

from oomph._protocol import Refused
from oomph._says import say

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class NotPython(Refused):
    """The script cannot be read as Python; the message says where and why."""


class StepsDone(SystemExit):
    """Ends the script after the requested number of steps, as `sys.exit(0)` would, so that it cleans up."""

    def __init__(self) -> None:
        """Exit status 0."""
        super().__init__(0)


def _call(function: Callable[[], None]) -> None:
    function()


_ROOM = 1 << 19
"""Slots of a frame, 8 bytes each: of the 8 MiB that Python reserves for such a frame, half is left for those that it calls."""


def run(argv: list[str], text: str | None = None) -> None:
    """Run `script args…` or `-m module args…`; `text` is what runs in place of the script's own.

    Since 3.11 Python has frames in pieces of 16 KiB, and maps and unmaps one for each call that is made at the end of a piece,
    such as those of a loop. So all of the script's frames are in one large piece, behind a frame that is as large as half of it.
    """
    roomy = types.FunctionType(_call.__code__.replace(co_stacksize=_ROOM), globals())
    roomy(lambda: _run(argv, text))


def _run(argv: list[str], text: str | None) -> None:
    if argv[0] == "-m":
        sys.argv = argv[1:]
        _expect_module(argv[1])
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        run_script(argv[0], text)


def _expect_module(name: str) -> None:
    """Say in a line that a module is missing. What goes wrong inside one is the script's own failure."""
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        found = None
    except ValueError:
        found = None
    if found is None:
        raise NotPython(f"there is no module {name}")


def run_script(path: str, text: str | None = None) -> None:
    """Run a file as `python file` would: as the module `__main__`, so that spawned workers find it. `text` is what runs in
    place of the file's; whoever asks for its lines gets these."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__)
    if path.endswith(".ipynb"):
        if sys.excepthook is sys.__excepthook__:
            # Python's own looks for lines in files only.
            sys.excepthook = traceback.print_exception
        # Without a file, as in a kernel: a worker that is spawned does not run the notebook again.
        codes = list(_cells(path, main))
    else:
        main.__dict__.update(__file__=os.path.abspath(path))
        if text is None:
            with open(path, "rb") as file:
                codes = [_compiled(file.read(), path)]
        else:
            _remember(path, text)
            codes = [_compiled(text.removeprefix("\ufeff"), path)]
    sys.modules["__main__"] = main
    for code in codes:
        exec(code, main.__dict__)


def _compiled(source: bytes | str, name: str) -> types.CodeType:
    """The code of a file. What Python cannot read is said in a line."""
    try:
        # This file's own `from __future__` is not the script's.
        return compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f"{name}:{error.lineno}" if error.lineno else name
        line = (error.text or "").strip()
        found = f", in {line[:80]!r}" if line.isprintable() and line else ""
        raise NotPython(f"{place}: this is not valid Python: {error.msg}{found}") from None
    except ValueError as error:
        raise NotPython(f"{name}: this is not valid Python: {error}") from None


def _cells(path: str, main: types.ModuleType) -> Iterator[types.CodeType]:
    """The code cells of a notebook; each has a name of its own, as the lines of tracebacks have."""
    from oomph._oomph import notebook_cells

    try:
        with open(path, encoding="utf-8-sig") as file:
            cells, left_out = notebook_cells(file.read())
    except ValueError as error:
        raise NotPython(f"{path}: {error}") from None
    if left_out:
        words = ", ".join(f"{what} (cell {number})" for number, what in left_out)
        say(f"left out of {path}, as only IPython knows it: {words}")
    # What a kernel offers without an import.
    main.__dict__["display"] = print
    for number, source in cells:
        name = f"{path}:cell {number}"
        _remember(name, source)
        yield _compiled(source, name)


def _remember(name: str, source: str) -> None:
    """Tracebacks and `inspect` find these lines under the name."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


def without_own_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback without oomph's own frames."""
    frames: list[types.TracebackType] = []
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        starts_script = not frames and filename in (runpy.__file__, "<frozen runpy>")
        if not starts_script and not filename.startswith(_PACKAGE):
            frames.append(traceback)
        traceback = traceback.tb_next
    kept = None
    for frame in reversed(frames):
        kept = types.TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept
