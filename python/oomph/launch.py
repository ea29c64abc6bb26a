"""Runs a script under the recorder: `python -m oomph.launch script.py args…` (or `-m module args…`).

`oomph run` starts this with the virtual GPU preloaded. Nothing heavy is imported before the script:
the recorder wakes up when the script imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import re
import runpy
import signal
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from oomph import _protocol, levers
from oomph._protocol import Refused, RunDirectory, Settings
from oomph._virtual_gpu.library import Unusable, library

SUPPORTED = {(2, 8): 12, (2, 11): 13, (2, 15): 13}
"""Releases of torch that the virtual GPU was proved with, and the CUDA of each: those that passed
every job of `make test-matrix`.

A release's patches (2.8.1) differ by fixes only and count as it; pre-releases do not."""


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

    ONNX Runtime works without torch, which is imported before it: whoever watches is made of it.
    """

    def __init__(self, then) -> None:
        self._then = then
        self._asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None):
        if name == "onnxruntime" and "torch" not in sys.modules and not self._asking:
            importlib.import_module("torch")
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
    """The traceback as it would be without oomph: its frames are not the user's."""
    package = os.path.dirname(os.path.abspath(__file__)) + os.sep
    frames: list[types.TracebackType] = []
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


class Session:
    """This process under the recorder: it wakes up when the script imports torch."""

    def __init__(self, settings: Settings, directory: RunDirectory) -> None:
        """The recorder's files go into `directory`. Nothing is touched before `begin`."""
        self.settings = settings
        self.directory = directory
        self.recorder: Any = None
        self._torch: tuple[str, str | None] = ("", None)
        self._hard_exit = os._exit
        # A record that one thread is writing must be done before another ends the process.
        self._writing = threading.RLock()

    def begin(self) -> None:
        """Watch for torch. Raise `Refused` if the virtual GPU cannot play for the installed one."""
        settings = self.settings
        levers.prepare(settings.levers)
        self._torch = check_torch(settings.virtual, settings.unsupported)
        cuda = self._torch[1]
        if settings.virtual and cuda is not None:
            try:
                library()
            except Unusable as error:
                raise Refused(str(error)) from None
            major, minor = cuda.split(".")[:2]
            self.directory.add_cuda_version(int(major), int(minor))
        sys.meta_path.insert(0, _ImportWatcher(self._torch_imported))
        os._exit = self._exit_at_once  # type: ignore[assignment]

    def _measures_drift(self) -> None:
        from oomph._recorder.drift import Drift

        self.recorder = Drift(self.settings, self.directory)
        self.recorder.start()
        if self.settings.levers:
            from oomph.levers import Levers

            self.recorder.levers = Levers(self.settings.levers)
            self.recorder.levers.install()
        self.recorder.watch()

    def _torch_imported(self) -> None:
        if self.settings.drift is not None:
            return self._measures_drift()
        from oomph._recorder.recorder import Recorder

        settings, resize = self.settings, None
        if any(size is not None for size in settings.resize.values()):
            from oomph._recorder.resize import Resize

            # Before the recorder, which is to see the job as it is then.
            resize = Resize(**settings.resize)
            resize.install()
        recorder = Recorder(settings, self.directory)
        recorder.resize = resize
        if settings.virtual and not is_supported(*self._torch):
            version, cuda = self._torch
            recorder.assumptions.add(
                "version",
                f"torch {version} with CUDA {cuda} behaves like the versions that the virtual GPU was "
                "proved with",
                "",
            )
        recorder.start()
        self.recorder = recorder
        # Before levers, which may make a process group.
        if settings.rehearsal:
            from oomph._ranks.rehearsal import install

            install(recorder)
        if settings.several:
            from oomph._ranks.recording import watch_ranks

            watch_ranks(recorder)
        if settings.levers:
            from oomph.levers import Levers

            recorder.levers = Levers(settings.levers)
            recorder.levers.install()

    def _exit_at_once(self, status: int) -> None:
        if self.recorder and os.getpid() == self.recorder.process:
            with self._writing:
                outcome = dict(kind="finished" if status == 0 else "exit", status=status)
                self.recorder.finish(outcome)
        self._hard_exit(status)

    def failed_with(self, error: BaseException) -> dict[str, Any]:
        """The script ended with `error`: the outcome that it comes to."""
        if self.recorder:
            self.recorder.failed_with(error)
        return dict(
            kind="exception", status=1, type=type(error).__qualname__, message=str(error)[:4000],
            blame=getattr(error, "oomph_blame", None),
        )  # fmt: skip

    def finish(self, outcome: dict[str, Any]) -> None:
        """Write the record; once."""
        with self._writing:
            if self.recorder:
                self.recorder.finish(outcome)
        os._exit = self._hard_exit
        if outcome["status"] == 0:
            _end_process_groups()


def at_most(seconds: float, wait: Callable[[], Any], ignored: type[Exception]) -> None:
    """Call `wait` and go on when it is done, has raised what is `ignored`, or has taken so long."""

    def run() -> None:
        with contextlib.suppress(ignored):
            wait()

    thread = threading.Thread(target=run, name="oomph-wait", daemon=True)
    thread.start()
    thread.join(seconds)


def _end_process_groups() -> None:
    """Destroy the process groups that the script leaves, as far as that takes a few seconds.

    Something in a model often holds them until after Python has ended. Then NCCL's watchdog, a
    thread that looks at collectives every tenth of a second, may call CUDA while the process is torn
    down around it, and takes the rank down with an error or a bad address. On busy processors a rank
    is being torn down for long enough to meet that.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return

    # A collective that other ranks never joined would be waited for.
    at_most(5.0, distributed.destroy_process_group, Exception)


def outcome_of(stop: SystemExit) -> dict[str, Any]:
    """How a script ends that exits by itself."""
    blame = getattr(stop, "oomph_blame", None)
    if blame is not None:
        # A lever cannot be applied; `oomph run` says why.
        return dict(kind="refused", status=2, type="CannotApply", message=str(stop), blame=blame)
    status = stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
    return dict(kind="finished" if status == 0 else "exit", status=status)


def _end_with_command(directory: RunDirectory) -> None:
    """Let the system end this process when the command that started it dies, by whatever."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    # It may have died before: then nobody holds its lock any more.
    if directory.is_released():
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Run the script named in `sys.argv`; returns its exit status."""
    argv = sys.argv[1:]
    module = argv[0] == "-m"
    # As Python would for this script or module: torch is looked for from there.
    sys.path[0] = os.getcwd() if module else os.path.dirname(os.path.abspath(argv[0]))
    path = os.environ.pop(_protocol.RUN, None)
    if path is None:
        from oomph._ranks.recording import is_recorded

        if not is_recorded():
            print(
                "oomph.launch records what `oomph run` starts. Expected to be started by it; use "
                "oomph run --gpu NAME script.py, or oomph run --gpu NAME:8 -- torchrun … script.py",
                file=sys.stderr,
            )
            return 2
        # A rank that a launcher started: it is recorded already.
        _run(argv)
        return 0
    # The variable is gone: children of the script are not this run.
    directory = RunDirectory.of_settings(path)
    outcome: dict[str, Any] = dict(kind="finished", status=0)
    try:
        settings = directory.settings()
        if settings.locked:
            _end_with_command(directory)
        session = Session(settings, directory)
        session.begin()
    except Refused as refusal:
        return directory.refuse(refusal)
    try:
        _run(argv)
    except SystemExit as stop:
        outcome = outcome_of(stop)
        if (
            stop.code is not None
            and not isinstance(stop.code, int)
            and outcome["kind"] != "refused"
        ):
            print(stop.code, file=sys.stderr)
    except KeyboardInterrupt:
        outcome = dict(kind="interrupted", status=130)
    except BaseException as error:
        error.__traceback__ = without_own_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        outcome = session.failed_with(error)
        del error
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    session.finish(outcome)
    return outcome["status"]


def _run(argv: list[str]) -> None:
    """Run `script args…` or `-m module args…`."""
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        run_script(argv[0])


if __name__ == "__main__":
    sys.exit(main())
