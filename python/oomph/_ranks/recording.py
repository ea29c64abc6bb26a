"""Records ranks that launchers start, and processes that scripts start, each in its own directory.

`oomph run -- torchrun … train.py` starts the launcher as it is; `_hook/sitecustomize.py` comes into
every Python process below it and calls `begin`, which records those that are ranks. Below a script on a
virtual GPU it records those that use the GPU.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import signal
import sys
import threading
import warnings
from typing import Any

from oomph import _protocol, levers
from oomph._older_python import orig_argv
from oomph._protocol import Refused, RunDirectory, Settings
from oomph._ranks.launcher import Launcher
from oomph._recorder.session import Session, outcome_of

_recorded = False


def is_recorded() -> bool:
    """Whether this process is a rank that is being recorded."""
    return _recorded


def _name() -> str | None:
    """The name of this process as a rank, or None if it is not one.

    Launchers (torchrun, accelerate, Lightning) identify ranks by their environment. Scripts that start
    their ranks themselves use `multiprocessing`; their ranks are identified at the first use of the GPU.
    """
    arguments = orig_argv
    if any("compile_worker" in word for word in arguments):
        return None
    if "--multiprocessing-fork" in arguments:
        return f"process-{os.getpid()}"
    for variable, kind in (("RANK", "rank"), ("LOCAL_RANK", "local-rank")):
        value = os.environ.get(variable, "")
        if value.isdigit():
            name = f"{kind}-{value}"
            return None if os.environ.get(_protocol.RANK) in (value, name) else name
    return None


def begin() -> None:
    """Record this process if it is a rank; if it may be a launcher, prepare to fork its ranks."""
    global _recorded
    known = os.environ.pop(_protocol.LAUNCHER, None)
    name = _name()
    if name is None and _protocol.RANK in os.environ:
        return  # a rank's own helper
    run = RunDirectory.of_settings(os.environ[_protocol.RANKS])
    try:
        settings = run.settings()
    except (OSError, ValueError):
        return  # the run that started this process is over
    except Refused as refusal:
        if name is not None:
            os._exit(run.refuse(refusal))
        return  # its ranks will refuse
    if not settings.several:
        return _begin_child(run, settings)
    if name is None:
        levers.prepare(settings.levers)
        if settings.fork:
            launcher = Launcher(run)
            launcher.install()
            if known:
                launcher.expect()
        return
    if settings.locked:
        threading.Thread(target=_outlived, args=(run,), daemon=True).start()
    os.environ[_protocol.RANK] = name
    # `python -m oomph.launch script.py` as a rank: runpy finds it imported, which is as it should be.
    warnings.filterwarnings("ignore", "'oomph.launch' found in sys.modules", RuntimeWarning)
    directory = run.rank(name)
    directory.make()
    session = Session(settings, directory)
    try:
        session.begin()
    except Refused as refusal:
        os._exit(directory.refuse(refusal))
    _recorded = True
    _End(session)


def _begin_child(run: RunDirectory, settings: Settings) -> None:
    """Record this process, which a script started, if it uses the GPU."""
    helpers = ("compile_worker", "multiprocessing.resource_tracker")
    if any(helper in word for word in orig_argv for helper in helpers):
        return
    # How the job ends is the script's affair.
    settings = dataclasses.replace(settings, black_box=False)
    session = Session(settings, run.rank(f"process-{os.getpid()}"))
    # In an environment that the virtual GPU does not support it runs as it is; the card counts it.
    with contextlib.suppress(Refused):
        session.begin()
        _End(session, terminated=False)


def _outlived(run: RunDirectory) -> None:
    """End this process when the run has ended for any reason: its command holds the lock until then.

    Its launcher may survive, and may have started this rank from a thread that has ended:
    `PR_SET_PDEATHSIG` would be wrong for both.
    """
    if run.is_released(wait=True):
        os.kill(os.getpid(), signal.SIGKILL)


class _End:
    """Observes how a script that Python itself runs ends."""

    def __init__(self, session: Session, terminated: bool = True) -> None:
        """`terminated`: a record is written also where a launcher terminates the process, as it does
        where another rank failed."""
        self._session = session
        self._outcome: dict[str, Any] = dict(kind="finished", status=0)
        self._process = os.getpid()
        excepthook, exit_ = sys.excepthook, sys.exit

        def failed(kind, error, traceback):
            self._outcome = session.failed_with(error)
            if issubclass(kind, KeyboardInterrupt):
                self._outcome = dict(kind="interrupted", status=130)
            excepthook(kind, error, traceback)

        @functools.wraps(exit_)
        def leaving(status=None):
            self._outcome = outcome_of(SystemExit(status))
            exit_(status)

        sys.excepthook, sys.exit = failed, leaving
        atexit.register(self._finish)
        if terminated:
            session.watch_termination()

    def _finish(self) -> None:
        if os.getpid() == self._process:
            # Python itself runs the script, and does not tell of a `SystemExit`.
            applied = self._session.recorder.levers if self._session.recorder else None
            if applied is not None and applied.refusal is not None:
                self._outcome = outcome_of(applied.refusal)
            self._session.finish(self._outcome)
