"""Runs a script or a module as Python would."""

from __future__ import annotations

import os
import runpy
import sys
import types

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def run(argv: list[str]) -> None:
    """Run `script args…` or `-m module args…`."""
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        run_script(argv[0])


def run_script(path: str) -> None:
    """Run a file as `python file` would: as the module `__main__`, so that spawned workers find it."""
    with open(path, "rb") as file:
        # This file's own `from __future__` is not the script's.
        code = compile(file.read(), path, "exec", dont_inherit=True)
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=os.path.abspath(path), __builtins__=__builtins__)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


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
