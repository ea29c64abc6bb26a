"""The fork server of a command: `python -m oomph._forks.server`, with a listening socket as standard input.

It imports torch when somebody connects, and ends with the process that started it. A forked process
looks to its script like one that was started, by the means of the fork server for ranks
(`_ranks/fork_server.py`). Whatever could differ is declined.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

from oomph._ranks import fork_server, launcher

_LATE = {"COLUMNS", "LINES", "OLDPWD", "PWD", "PYTEST_CURRENT_TEST", "PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR"}  # fmt: skip
"""Variables that nothing reads on import, beside those of launchers."""
_LAUNCH = "oomph.launch"
_BLAS = "OPENBLAS_NUM_THREADS"
"""NumPy's library starts threads when it is loaded, unless this is 1."""

Request = dict[str, Any]


def _early(environment: Any) -> dict[str, str]:
    return {k: v for k, v in launcher.early(environment).items() if k not in _LATE}


def _paths(request: Request) -> list[str]:
    """The directories in which the process looks for modules first; oomph's own hook is not among them."""
    given = request["environment"].get("PYTHONPATH", "")
    paths = [request["directory"], *(path for path in given.split(":") if path)]
    return [path for path in paths if os.path.basename(path) != "_hook"]


def _is_ordinary(request: Request) -> bool:
    """Whether a forked process is the same as one that is started."""
    if _early(request["environment"]) != _early(os.environ):
        return False
    script, looked = request["argv"][3], _paths(request)
    if script != "-m":
        looked.append(os.path.dirname(os.path.join(request["directory"], script)))
    return not any(
        os.path.exists(os.path.join(path, "sitecustomize.py")) or fork_server.shadowed(path)
        for path in looked
    )


def _keep(connection: socket.socket, ended: Callable[[Request], None]) -> Request:
    """Fork a process for a request and tell how it ends; returns in that process, with the request."""
    found = fork_server.received(connection)
    if found is None:
        os._exit(0)
    request, streams = found
    if not _is_ordinary(request):
        connection.sendall(b"0")
        os._exit(0)
    process = os.fork()
    if process == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for stream in streams:
            if stream > 2:
                os.close(stream)
        return request
    for stream in streams:
        os.close(stream)
    connection.sendall(str(process).encode())
    watched = os.pidfd_open(process)
    readable, _, _ = select.select([watched, connection.fileno()], [], [])
    if watched not in readable:
        os.kill(process, signal.SIGKILL)  # the one that stands for it is gone
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    ended(request)
    try:
        connection.sendall(str(status).encode())
    finally:
        os._exit(0)


def _serve(listener: socket.socket, owner: int, ended: Callable[[Request], None]) -> Request:
    """Fork a process at each request; returns in each of them, with what was asked."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that keep processes need no waiting for
    while True:
        readable, _, _ = select.select([listener.fileno(), owner], [], [])
        if owner in readable:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            os.close(owner)
            return _keep(connection, ended)
        connection.close()


def _openblas() -> Iterator[ctypes.CDLL]:
    """NumPy's OpenBLAS, whatever wheels call it."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "openblas" in line}
    for path in paths:
        with contextlib.suppress(OSError):
            yield ctypes.CDLL(path)


def _allow_threads(count: int) -> None:
    """Let OpenBLAS use as many threads as it would have started with."""
    names = [
        f"{prefix}openblas_set_num_threads{end}" for prefix in ("", "scipy_") for end in ("", "64_")
    ]
    for library in _openblas():
        for name in names:
            if hasattr(library, name):
                getattr(library, name)(count)


def _become(request: Request) -> None:
    """Make this process the one that was asked for, up to the first line of `oomph.launch`."""
    fork_server.take_place(request)
    sys.argv[:] = [str(sys.modules[_LAUNCH].__file__), *request["argv"][3:]]
    sys.path[:0] = _paths(request)
    fork_server.hide_torch(request)


def main(ended: Callable[[Request], None] = lambda request: None) -> None:
    """Serve; in each forked process, run its script. `ended` is told the requests whose process has ended."""
    listener, owner = socket.socket(fileno=os.dup(0)), os.pidfd_open(os.getppid())
    # Ctrl-C is for the command and the processes that run scripts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    del sys.path[0]  # of `-m`: the command's directory
    if owner in select.select([listener.fileno(), owner], [], [])[0]:
        return  # nobody asked
    gc.disable()
    # OpenBLAS follows the variable of OpenMP, too.
    starts_threads = not os.environ.keys() & {_BLAS, "OMP_NUM_THREADS"}
    if starts_threads:
        os.environ[_BLAS] = "1"
    for name in (*fork_server.PRELOADED, _LAUNCH):
        importlib.import_module(name)
    if starts_threads:
        del os.environ[_BLAS]
    sys.modules["oomph._virtual_gpu.dispatch"].register()
    if len(os.listdir("/proc/self/task")) > 1:
        os._exit(1)  # threads are not forked
    gc.collect()
    gc.freeze()
    _become(_serve(listener, owner, ended))
    if starts_threads:
        _allow_threads(len(os.sched_getaffinity(0)))
    launch = sys.modules.pop(_LAUNCH)
    sys.exit(launch.main())


if __name__ == "__main__":
    main()
