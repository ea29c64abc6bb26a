"""The product's fork server (`oomph._forks.server`), whose processes end sooner, and tell how long they took.

A test's script takes a tenth of a second. Python would then take three tenths to dismantle what it shares with the
server, all of torch. So it ends where `atexit` has run; `make test-all`, which forks nothing, sees the rest.
"""

import atexit
import ctypes
import os
import resource
import sys
import threading
import weakref

from oomph._forks import learned, server


def note_seconds(request):
    """For `tests/support/cpu_seconds.py`."""
    path = os.environ.get("TESTS_FORKED_SECONDS")
    test = request["environment"].get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if path is not None:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(path, "a") as file:
            file.write(f"{used.ru_utime + used.ru_stime:.2f}\t{test}\n")


def serve(*arguments, serve=server._serve):
    """What torch made when it was imported is not unmade by each process."""
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    return serve(*arguments)


def end(status):
    """As Python does, without the modules: threads, `atexit`, the streams, and those of C."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


if __name__ == "__main__":
    server._serve = serve
    # Tests of what is kept there have one each. Nothing that the server imports reads it on import.
    learned.LATE.add("XDG_CACHE_HOME")
    del __file__  # this is no source of the script's
    try:
        server.main(note_seconds)
    except SystemExit as stop:
        if isinstance(stop.code, int):
            end(stop.code)
        raise
