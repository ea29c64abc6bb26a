"""A process under the recorder: it wakes up when the script imports torch."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from oomph import levers
from oomph._import_hooks import around_import, before_import, on_import
from oomph._older_python import orig_argv
from oomph._protocol import NET, File, Refused, RunDirectory, Settings
from oomph._recorder import jax_setup, sources
from oomph._recorder.black_box import BlackBox
from oomph._recorder.cuda_releases import mixed
from oomph._recorder.cupy_setup import installed_cupy
from oomph._recorder.process_groups import (
    end_process_groups,
    settle_first_buckets,
    watch_ranks,
)
from oomph._recorder.torch_versions import Standing, Torch, check_torch, missing_library, warning
from oomph._says import say
from oomph._virtual_gpu.library import Unusable, library

_STEPS_LATER = ("Numba", "ONNX Runtime")
"""Beside these `--steps` has an effect: another framework may follow, or passes are counted."""
_TERMINATING = (signal.SIGTERM, signal.SIGHUP)
_PAUSE = 5
"""How long the script stands still while its record is written after one of them, in seconds."""
"""What `oomph run` passes on to the script, and launchers send to ranks."""


class Session:
    """This process under the recorder, which starts when the script imports torch."""

    def __init__(self, settings: Settings, directory: RunDirectory, in_parts: bool = False) -> None:
        """The recorder's files go into `directory`. Nothing is touched before `begin`.

        `in_parts`: parts of the program are recorded by themselves, and not the whole (`Recorder.begin_part`).
        """
        self.in_parts = in_parts
        self.settings = settings
        self.directory = directory
        self.recorder: Any = None
        self.box: BlackBox | None = None
        self.framework: Any = None
        """What records JAX or CuPy, once the script imports it on a virtual GPU."""
        self._answers: int | None = None
        """The release of CUDA as which the virtual GPU answers."""
        self._torch = Torch("", None)
        self.hard_exit = os._exit
        # One thread must finish writing the record before another ends the process.
        self._writing = threading.RLock()

    def begin(self) -> None:
        """Wait for the import of torch, JAX or CuPy. Raise `Refused` if the virtual GPU does not support the installed version."""
        settings = self.settings
        if settings.virtual and not self.in_parts:
            sources.watch()
        levers.prepare(settings.levers)
        refusal: Refused | None = None
        try:
            self._torch = check_torch(settings.virtual, settings.unsupported)
        except Refused as refused:
            # A script that uses JAX, CuPy, Numba, TensorFlow or ONNX Runtime needs no torch.
            others = (
                jax_setup.is_installed(),
                installed_cupy() is not None,
                importlib.util.find_spec("numba") is not None,
                importlib.util.find_spec("tensorflow") is not None,
                importlib.util.find_spec("onnxruntime") is not None,
            )
            if not settings.virtual or self.in_parts or not any(others):
                raise
            refusal = refused
        cuda = self._torch.cuda
        if settings.virtual and cuda is not None:
            try:
                library()
            except Unusable as error:
                raise Refused(str(error)) from None
            major, minor = cuda.split(".")[:2]
            self._answer_as(int(major), int(minor))
        if settings.black_box:
            self.box = BlackBox(self.directory)
            launched = "oomph.launch" in orig_argv
            self.box.start(sys.argv[1:] if launched else orig_argv[1:])
        if refusal is not None:
            refuse, reason = self.directory.refuse, refusal
            before_import("torch", lambda: self.hard_exit(refuse(reason)))
        on_import("torch", lambda module: self._torch_imported())
        if settings.virtual and settings.compute is None:
            # Little is computed: OpenMP's threads would spin for longer than they work, which it decides when torch loads it.
            before_import("vllm", lambda: os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE"))
        if settings.virtual and settings.drift is None and not self.in_parts:
            before_import("jax", self._jax_begins)
            around_import("cupy", self._cupy_begins)
            before_import("numba.cuda", self._numba_begins)
            before_import("tensorflow", self._tensorflow_begins)
        before_import("onnxruntime", self._onnx_begins)
        if not self.in_parts:
            os._exit = self._exit_at_once  # type: ignore[assignment]
        if not settings.virtual:
            # A virtual GPU's card knows the process, whatever program it becomes.
            self._watch_exec()

    def _answer_as(self, major: int, minor: int = 0) -> None:
        """The virtual GPU answers as this release of CUDA."""
        self._answers = major
        self.directory.add_cuda_version(major, minor)

    def _jax_begins(self) -> None:
        """The script imports JAX, on a virtual GPU."""
        from oomph._recorder.jax_recorder import JaxRecorder

        alone = "torch" not in sys.modules
        try:
            library()
            jax = jax_setup.installed_jax()
            if alone and self.settings.levers and not levers.are_for_jax(self.settings.levers):
                raise Refused("the plan changes scripts that use PyTorch, and this one uses JAX.")
        except (Refused, Unusable) as error:
            if alone:
                self.hard_exit(self.directory.refuse(Refused(str(error))))
            return
        if alone and jax.cuda is not None:
            self._answer_as(jax.cuda)
            self.directory.add_framework("jax")
        self._begin(JaxRecorder(self.directory, jax, self.hard_exit), "JAX")

    @contextlib.contextmanager
    def _cupy_begins(self) -> Iterator[None]:
        """The script imports CuPy, on a virtual GPU. Beside another framework it is not recorded: its memory counts as not that one's."""
        from oomph._recorder.cupy_recorder import CupyRecorder

        recorder = None
        if self._is_alone("CuPy"):
            major = installed_cupy()
            if major is not None:
                self._answer_as(major)
            self.directory.add_framework("cupy")
            recorder = CupyRecorder(self.directory, self.hard_exit, self.settings.unknown)
            self._begin(recorder, "CuPy")
        yield
        if recorder is not None:
            recorder.imported(sys.modules["cupy"])

    def _numba_begins(self) -> None:
        """The script imports Numba's part for CUDA, on a virtual GPU. Beside another framework it is not recorded, as CuPy."""
        from oomph._recorder.numba_recorder import NumbaRecorder, installed_bindings

        # A script that uses PyTorch may import Numba first.
        if not self.settings.levers and self._is_alone("Numba"):
            major = installed_bindings()
            if major is not None and self._torch.cuda is None:
                self._answer_as(major)
            self._begin(NumbaRecorder(self.directory, self.hard_exit), "Numba")

    def _onnx_begins(self) -> None:
        """The script imports ONNX Runtime. Where torch is installed, its recorder sees more: each pass, and memory beside it."""
        try:
            importlib.import_module("torch")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            if not self.settings.virtual or self.in_parts:
                return
            from oomph._recorder.onnx_recorder import OnnxRecorder

            if self._is_alone("ONNX Runtime"):
                recorder = OnnxRecorder(self.directory, self.hard_exit, self.settings.steps)
                self._begin(recorder, "ONNX Runtime")

    def _tensorflow_begins(self) -> None:
        """The script imports TensorFlow, on a virtual GPU. Beside another framework it is not recorded, as CuPy."""
        from oomph._recorder.tensorflow_recorder import TensorflowRecorder

        if self._is_alone("TensorFlow"):
            # PyPI's builds are for CUDA 12.
            self._answer_as(12, 9)
            self.directory.add_framework("tensorflow")
            self._begin(TensorflowRecorder(self.directory, self.hard_exit), "TensorFlow")

    def _is_alone(self, name: str) -> bool:
        """Whether the framework `name`, which is about to be imported, is the script's first, but for Numba: others use its kernels.
        Ends the process where the virtual GPU, or a plan, is not for it."""
        if getattr(self.framework, "label", "Numba") != "Numba" or "torch" in sys.modules:
            return False
        try:
            library()
            if self.settings.levers:
                raise Refused(f"a plan changes scripts that use PyTorch, and this one uses {name}.")
        except (Refused, Unusable) as error:
            self.hard_exit(self.directory.refuse(Refused(str(error))))
        return True

    def _begin(self, recorder: Any, name: str) -> None:
        """Record what a framework does that the script is about to import."""
        if (
            "torch" not in sys.modules
            and self.settings.steps is not None
            and name not in _STEPS_LATER
        ):
            say(f"--steps has no effect: a script that uses {name} runs to its end")
        if not os.path.isdir(self.directory.path):
            self.directory.make()
        self.framework = recorder
        recorder.start()

    def _writer(self, outcome: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """What writes the record, and of which outcome: that of JAX or CuPy where it alone used the GPU."""
        torch = sys.modules.get("torch")
        if (
            self.recorder is not None
            and outcome["status"] == 0
            and getattr(self.recorder, "fell_back", "")
        ):
            outcome = _failed(self.recorder.fell_back)
        if self.framework is None or os.getpid() != self.framework.process:
            return self.recorder, outcome
        if self.recorder is None or not torch.cuda.is_initialized():  # type: ignore[union-attr]
            if self.framework.uses_gpu or self.recorder is None:
                return self.framework, outcome
            if self.framework.fell_back and outcome["status"] == 0:
                outcome = _failed(self.framework.fell_back)
        elif self.framework.uses_gpu:
            what = f"{self.framework.label} used the GPU beside PyTorch: its memory counts as not PyTorch's"
            self.recorder.assumptions.add("attribution", what, "")
        return self.recorder, outcome

    def _measures_drift(self) -> None:
        from oomph._recorder.drift import Drift

        self.recorder = Drift(self.settings, self.directory)
        self.recorder.start()
        if self.settings.levers:
            self.recorder.levers = levers.Levers(self.settings.levers)
            self.recorder.levers.install()
        self.recorder.watch()

    def _torch_imported(self) -> None:
        if not os.path.isdir(self.directory.path):
            self.directory.make()
        self._probe_torch()
        if os.environ.get(NET):
            from oomph import _steady_gradients

            _steady_gradients.install()
        if self.settings.drift is not None:
            return self._measures_drift()
        from oomph._recorder.recorder import Recorder

        settings, resize = self.settings, None
        if any(size is not None for size in settings.resize.values()):
            from oomph._recorder.resize import Resize

            # Before the recorder, which must see the changed job.
            resize = Resize(**settings.resize)
            resize.install()
        recorder = Recorder(settings, self.directory, self.box, self.in_parts)
        recorder.resize = resize
        if settings.virtual and self._torch.standing is not Standing.PROVED:
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
            from oomph._recorder import rehearsal

            rehearsal.install(recorder)
        if settings.several:
            watch_ranks(recorder)
        if settings.virtual:
            settle_first_buckets(recorder)
        if settings.levers:
            recorder.levers = levers.Levers(settings.levers)
            recorder.levers.install()

    def _probe_torch(self) -> None:
        """Of a torch that nobody has tested: whether it behaves. Ends the process if it does not."""
        torch = self._torch
        if not self.settings.virtual or torch.standing is not Standing.UNPROVED:
            return
        if self.settings.unsupported:
            return
        from oomph._recorder import probe

        reason = probe.failure()
        if reason is not None:
            refusal = Refused(
                f"torch {torch.version} with CUDA {torch.cuda} is not supported: the probe of it failed ({reason}). "
                "Install a version that oomph was tested with (README.md), or run anyway with --unsupported."
            )
            self.hard_exit(self.directory.refuse(refusal))
        if os.environ.get("RANK", "0") == "0":
            say(warning(torch))

    def _exit_at_once(self, status: int) -> None:
        recorder = self.recorder or self.framework
        if recorder and os.getpid() == recorder.process:
            if self.box is not None:
                self.box.look_here(at_end=True)
            self._write_record(dict(kind="finished" if status == 0 else "exit", status=status))
        self.hard_exit(status)

    def watch_termination(self) -> None:
        """Write the record where SIGTERM or SIGHUP ends this process, unless the script has a handler.

        In a thread, because the main thread may be busy for long, or inside a collective.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        watched = [s for s in _TERMINATING if signal.getsignal(s) == signal.SIG_DFL]
        if not watched or signal.set_wakeup_fd(-1) != -1:
            return
        process = os.getpid()
        reader, writer = os.pipe()
        os.set_blocking(writer, False)

        def end(number: int) -> None:
            if os.getpid() == process:
                try:
                    if self.box is not None:
                        self.box.ends(signal.Signals(number).name)
                    self.finish(dict(kind="terminated", status=128 + number))
                finally:
                    self.hard_exit(128 + number)

        def handle(number: int, frame: Any) -> None:
            # A script that replaced the descriptor, as asyncio does, is not ended by the thread below.
            current = signal.set_wakeup_fd(-1)
            signal.set_wakeup_fd(current, warn_on_full_buffer=False)
            if current != writer:
                threading.Thread(target=end, args=(number,), daemon=True).start()
            # What the record is made of must not change while it is written. It may need a lock that is held here.
            time.sleep(_PAUSE)

        def watch() -> None:
            while True:
                (number,) = os.read(reader, 1)
                if number in watched and getsignal(number) is handle:
                    end(number)

        getsignal = signal.getsignal

        @functools.wraps(getsignal)
        def unwatched(number: int) -> Any:
            # Lightning has no handler of its own where there is one.
            found = getsignal(number)
            return signal.SIG_DFL if found is handle else found

        thread = threading.Thread(target=watch, name="oomph-termination", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return  # no more threads are allowed: a signal ends the script as it would without oomph
        for number in watched:
            signal.signal(number, handle)
        signal.getsignal = unwatched
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        # A forked child has no such thread.
        os.register_at_fork(after_in_child=lambda: _default_termination(getsignal, handle))

    def _write_record(self, outcome: dict[str, Any]) -> None:
        with self._writing:
            writer, outcome = self._writer(outcome)
            if writer:
                if self._answers is not None and (said := mixed(self._answers)):
                    say(said)
                    writer.assumptions.add("version", said, "")
                try:
                    writer.finish(outcome)
                except OSError as error:
                    self._cannot_write(error)
            if self.box is not None:
                self.box.finished()

    def _cannot_write(self, error: OSError) -> None:
        """The disk is full, say. How the script ended stays its own affair; the command says what is missing."""
        reason = (
            f"the record of the run could not be written to {self.directory.path}: {error.strerror}. "
            "Make room, or name another directory with --out"
        )
        try:
            self.directory.remove(File.SNAPSHOT)
            self.directory.refuse(Refused(reason))
        except OSError:
            say(reason)

    def _watch_exec(self) -> None:
        """Write the record before another program takes this process over."""

        def wrap(original: Any) -> Any:
            @functools.wraps(original)
            def replace(path: Any, *rest: Any) -> None:
                if (
                    self.recorder
                    and os.getpid() == self.recorder.process
                    and os.access(path, os.X_OK)
                ):
                    with self._writing:
                        self.recorder.is_replaced()
                original(path, *rest)

            return replace

        os.execv, os.execve = wrap(os.execv), wrap(os.execve)  # the others call these

    def failed_with(self, error: BaseException) -> dict[str, Any]:
        """The outcome of a script that ended with `error`."""
        missing = missing_library(self._torch, error)
        if missing is not None:
            say(missing)
        for recorder in filter(None, (self.recorder, self.framework)):
            recorder.failed_with(error)
        return dict(
            kind="exception", status=1, type=type(error).__qualname__, message=_message(error)[:4000],
            blame=getattr(error, "oomph_blame", None),
        )  # fmt: skip

    def finish(self, outcome: dict[str, Any]) -> None:
        """Write the record; once."""
        self._write_record(outcome)
        os._exit = self.hard_exit
        if outcome["status"] == 0:
            end_process_groups()


def _default_termination(getsignal: Any, handler: Any) -> None:
    with contextlib.suppress(ValueError):
        for number in _TERMINATING:
            if getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


def _message(error: BaseException) -> str:
    """What `error` says. pydantic's counts its errors in the first line, and says below it what they are."""
    if not type(error).__module__.startswith("pydantic_core"):
        return str(error)
    said = []
    for one in error.errors(include_url=False, include_context=False, include_input=False):  # type: ignore[attr-defined]
        place = ".".join(map(str, one["loc"]))
        said.append(f"{place}: {one['msg']}" if place else one["msg"])
    return "; ".join(said)


def _failed(why: str) -> dict[str, Any]:
    """The outcome of a script that fell back to the CPU, and went on to its end."""
    return dict(kind="exception", status=1, type="Refused", message=why)


def outcome_of(stop: SystemExit) -> dict[str, Any]:
    """The outcome of a script that calls `sys.exit`."""
    blame = getattr(stop, "oomph_blame", None)
    if blame is not None:
        # A lever cannot be applied; `oomph run` says why.
        return dict(kind="refused", status=2, type="CannotApply", message=str(stop), blame=blame)
    status = stop.code if isinstance(stop.code, int) else (0 if stop.code is None else 1)
    return dict(kind="finished" if status == 0 else "exit", status=status)
