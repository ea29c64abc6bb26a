"""Work that a forked process does while this one goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

_LONGEST = 60.0
"""Seconds that `wait` gives a process: one may hang on a lock that a thread held when it was forked."""


class Beside:
    """Writes files that this process itself does not read: on the machine's other cores, as of now."""

    def __init__(self) -> None:
        self._running: dict[int, Callable[[], None]] = {}
        self._owner = os.getpid()

    def do(self, work: Callable[[], None], is_done: Callable[[], bool]) -> None:
        """Have `work` done until `wait` returns; `is_done` says whether it was, where it was done.

        Done here and now where no process can be forked, or this one may use one core only.
        """
        if os.getpid() != self._owner:
            self._running, self._owner = {}, os.getpid()
        try:
            process = os.fork() if len(os.sched_getaffinity(0)) > 1 else None
        except OSError:
            process = None
        if process is None:
            work()
            return
        if process == 0:
            status = 1
            try:
                work()
                status = 0 if is_done() else 1
            finally:
                os._exit(status)
        self._running[process] = work

    def wait(self) -> None:
        """Until all is done; here, if a forked process failed or takes too long."""
        if os.getpid() != self._owner:
            return
        running, self._running = self._running, {}
        until = time.monotonic() + _LONGEST
        for process, work in running.items():
            if not _ended_well(process, until):
                work()


def _ended_well(process: int, until: float) -> bool:
    try:
        while True:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return status == 0
            if time.monotonic() > until:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return False
            time.sleep(0.01)
    except ChildProcessError:  # the program has waited for it
        return True
