"""Runs a script under the recorder: `python -m oomph.launch script.py args…` (or `-m module args…`).

`oomph run` starts this with the virtual GPU preloaded. Nothing heavy is imported before the script:
the recorder starts when the script imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from typing import Any

from oomph import _protocol
from oomph._forks import client
from oomph._protocol import Refused, RunDirectory
from oomph._ranks.recording import is_recorded
from oomph._recorder import read_ahead, script
from oomph._recorder.session import Session, outcome_of


def _end_with_command(directory: RunDirectory) -> None:
    """Make the system kill this process when the command that started it dies for any reason."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    # It may have died before: then its lock is free.
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
        if not is_recorded():
            print(
                "oomph.launch must be started by `oomph run`; use "
                "oomph run --gpu NAME script.py, or oomph run --gpu NAME:8 -- torchrun … script.py",
                file=sys.stderr,
            )
            return 2
        # A rank that a launcher started: it is recorded already.
        try:
            script.run(argv)
        except script.NotPython as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0
    read_ahead.begin(argv)
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
    session.watch_termination()
    try:
        script.run(argv, settings.text)
    except script.NotPython as error:
        return directory.refuse(error)
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
        error.__traceback__ = script.without_own_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        outcome = session.failed_with(error)
        del error
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    session.finish(outcome)
    return outcome["status"]


if __name__ == "__main__":
    client.stand_for_forked()
    status = main()
    if "vllm" in sys.modules:
        from oomph._recorder import vllm_engine

        vllm_engine.end(status)
    sys.exit(status)
