"""Runs a script under the recorder: `python -m oomph.launch script.py args…` (or `-m module args…`).

`oomph run` starts this with the virtual GPU preloaded. Nothing heavy is imported before the script:
the recorder wakes up when the script imports torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import runpy
import sys
import types
from typing import Any

from oomph import levers

SUPPORTED = {(2, 8): 12, (2, 11): 13, (2, 15): 13}
"""Releases of torch that the virtual GPU was proved with, and the CUDA of each: those that passed
every job of `make test-matrix`.

A release's patches (2.8.1) differ by fixes only and count as it; pre-releases do not."""

RUN_VARIABLE = "OOMPH_RUN"
"""Names the JSON file with the settings of this run, written by `oomph run`."""


class Refused(Exception):
    """The run cannot begin; the message says what was expected, what was found and what to do."""


def _installed_torch() -> tuple[str, str | None]:
    """Version and CUDA version of the installed torch, read from its files without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise Refused(
            f"torch is not installed in {sys.prefix}. Install it there (pip install torch), or run "
            "oomph from the environment that has it."
        )
    path = os.path.join(next(iter(spec.submodule_search_locations)), "version.py")
    try:
        with open(path) as file:
            text = file.read()
    except OSError as error:
        raise Refused(
            f"cannot read {path}: {error}. Is this a complete installation of torch?"
        ) from None
    version = re.search(r"^__version__ = '([^']+)'", text, re.M)
    cuda = re.search(r"^cuda[^=\n]*= '([^']+)'", text, re.M)
    return (version.group(1) if version else "unknown"), (cuda.group(1) if cuda else None)


def is_supported(version: str, cuda: str | None) -> bool:
    """Whether the virtual GPU was proved with this torch and the CUDA that it was built for."""
    # 2.8.0, 2.8.1+cu128; not 2.8.0a0+git, 2.8.0.dev20250601.
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?(\+.*)?", version)
    if match is None or cuda is None:
        return False
    return str(SUPPORTED.get((int(match[1]), int(match[2])))) == cuda.split(".")[0]


def check_torch(virtual: bool, unsupported: bool) -> tuple[str, str | None]:
    """Version and CUDA of the installed torch, or `Refused` if the virtual GPU cannot play for it."""
    version, cuda = _installed_torch()
    if not virtual:
        return version, cuda
    if cuda is None:
        raise Refused(
            f"torch {version} in {sys.prefix} is built without CUDA. The virtual GPU needs the CUDA "
            "build (the default of `pip install torch` on Linux); no driver or GPU is needed for it."
        )
    if not is_supported(version, cuda) and not unsupported:
        known = ", ".join(
            f"{major}.{minor} with CUDA {of}" for (major, minor), of in SUPPORTED.items()
        )
        raise Refused(
            f"torch {version} with CUDA {cuda} is not among the versions that the virtual GPU was "
            f"proved with: torch {known}. Install one of them, or run it all the same with "
            "--unsupported; the result then says so."
        )
    return version, cuda


class _ImportWatcher:
    """Calls `then` when torch has been imported, and steps aside.

    Libraries ask whether torch is there (`importlib.util.find_spec`) without importing it: each
    answer is watched, and only one that is executed counts.
    """

    def __init__(self, then) -> None:
        self._then = then
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None):
        if name != "torch" or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self._asking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            execute(module)
            self._then()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _run_script(path: str) -> None:
    """Run a file as `python file` would: as the module `__main__`, so that spawned workers find it."""
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _without_own_frames(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback as it would be without oomph: its frames are not the user's."""
    package = os.path.dirname(os.path.abspath(__file__)) + os.sep
    frames = []
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        starts_script = not frames and filename in (runpy.__file__, "<frozen runpy>")
        if not starts_script and not filename.startswith(package):
            frames.append(traceback)
        traceback = traceback.tb_next
    kept = None
    for frame in reversed(frames):
        kept = types.TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept


def main() -> int:
    """Run the script named in `sys.argv`; returns its exit status."""
    arguments = sys.argv[1:]
    with open(os.environ[RUN_VARIABLE]) as file:
        settings = json.load(file)
    # As Python would for this script or module: torch is looked for from there.
    module = arguments[0] == "-m"
    sys.path[0] = os.getcwd() if module else os.path.dirname(os.path.abspath(arguments[0]))
    # Children of the script are not this run.
    del os.environ[RUN_VARIABLE]
    specifications = settings.get("levers", [])
    levers.prepare(specifications)
    recorder: list[Any] = []

    def measures_drift() -> None:
        from oomph.drift import Drift

        recorder.append(Drift(settings))
        recorder[0].start()
        if specifications:
            from oomph.levers import Levers

            recorder[0].levers = Levers(specifications)
            recorder[0].levers.install()
        recorder[0].watch()

    def torch_imported() -> None:
        if settings.get("drift"):
            return measures_drift()
        from oomph.recorder import Recorder

        if any(size is not None for size in settings.get("variant", {}).values()):
            from oomph.variant import Variant

            # Before the recorder, which is to see the job as it is then.
            Variant(**settings["variant"]).install()
        recorder.append(Recorder(settings))
        if settings["virtual"] and not is_supported(version, cuda):
            recorder[0].assumptions.add(
                "version",
                f"torch {version} with CUDA {cuda} behaves like the versions that the virtual GPU was "
                "proved with",
                "",
            )
        recorder[0].start()
        if specifications:
            from oomph.levers import Levers

            recorder[0].levers = Levers(specifications)
            recorder[0].levers.install()

    outcome: dict[str, Any] = dict(kind="finished", status=0)
    try:
        version, cuda = check_torch(settings["virtual"], settings["unsupported"])
        if settings["virtual"] and cuda is not None:
            major, minor = cuda.split(".")[:2]
            with open(settings["config"], "a") as file:
                file.write(f"cuda_version={int(major) * 1000 + int(minor) * 10}\n")
    except Refused as refusal:
        with open(os.path.join(settings["directory"], "refused.txt"), "w") as file:
            file.write(str(refusal))
        return 2
    sys.meta_path.insert(0, _ImportWatcher(torch_imported))
    hard_exit = os._exit

    def exit_at_once(status: int) -> None:
        if recorder and os.getpid() == recorder[0].process:
            recorder[0].finish(dict(kind="finished" if status == 0 else "exit", status=status))
        hard_exit(status)

    os._exit = exit_at_once  # type: ignore[assignment]
    try:
        if module:
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            _run_script(arguments[0])
    except SystemExit as stop:
        refusal = getattr(stop, "oomph_refusal", None)
        status = stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
        if refusal is not None:
            # A lever cannot be applied; `oomph run` says why.
            outcome = dict(kind="refused", status=2, type="CannotApply", message=refusal)
        else:
            if stop.code is not None and not isinstance(stop.code, int):
                print(stop.code, file=sys.stderr)
            outcome = dict(kind="finished" if status == 0 else "exit", status=status)
    except KeyboardInterrupt:
        outcome = dict(kind="interrupted", status=130)
    except BaseException as error:
        outcome = dict(
            kind="exception", status=1, type=type(error).__qualname__, message=str(error)[:4000]
        )
        error.__traceback__ = _without_own_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        if recorder:
            recorder[0].failed_with(error)
        del error
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if recorder:
        recorder[0].finish(outcome)
    os._exit = hard_exit
    return outcome["status"]


if __name__ == "__main__":
    sys.exit(main())
