"""The fork server of a command: `python -m oomph._forks.server PID [CACHE]`, with a listening socket as standard input.

It imports torch when somebody connects, and ends with the process that started it. A forked process
looks to its script like one that was started, by the means of the fork server for ranks
(`_ranks/fork_server.py`). Whatever could differ is declined.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from oomph._forks import learned
from oomph._ranks import fork_server, launcher

_LAUNCH = "oomph.launch"

Request = dict[str, Any]


def _early(environment: Any) -> dict[str, str]:
    return {k: v for k, v in launcher.early(environment).items() if k not in learned.LATE}


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


def _same(request: Request) -> str:
    """What must be the same in runs of a script, if one is to have what another imported."""
    environment = learned.read_early(request["environment"])
    return json.dumps([request["argv"], request["directory"], _paths(request), environment])


class _Pupil:
    """The server's side of the process that learns from the first run of the script, and forks the others."""

    PATIENCE = 60
    """The time limit for its imports, in seconds."""
    MOST = 1 << 17
    """The bytes of a message."""

    def __init__(self) -> None:
        self.own, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.learns = False
        self.teaches: str | None = None
        """For which runs it forks."""

    def hear(self) -> bool:
        """Take its message; False if it is gone: it has learned nothing."""
        try:
            message = self.own.recv(self.MOST)
        except OSError:
            message = b""
        self.learns = message == _LEARNS
        self.teaches = None if self.learns else message.decode()
        return bool(message)

    def asked(self, connection: socket.socket, request: Request, streams: list[int]) -> bool:
        """Pass a request on to it, if it is like the one that it learned from."""
        if self.teaches is None or self.teaches != _same(request):
            return False
        try:
            socket.send_fds(
                self.own, [json.dumps(request).encode()], [connection.fileno(), *streams]
            )
        except OSError:
            return False
        return True


_LEARNS = b"learns"


class Script:
    """A process that runs a script."""

    def __init__(self, request: Request) -> None:
        """Nothing is learned in it, and nothing was."""
        self.request = request
        self.notes: int | None = None
        """A file for what it imports, if somebody wants to learn that."""
        self.learned: learned.Learned | None = None
        self.declined: int | None = None
        """A file that says that what was learned is no use."""

    def decline(self) -> None:
        """What was learned is no use."""
        if self.declined is not None:
            os.write(self.declined, b"1")


def _fork(
    connection: socket.socket,
    found: tuple[Request, list[int]],
    ended: Callable[[Request], None],
    told: Callable[[int], None],
    taught: learned.Learned | None = None,
) -> Script | None:
    """Fork a process for a request and tell how it ends; returns in that process, with what it is to run.

    Returns None in the other one. `told` gets a file that the process may have written to, before that.
    """
    request, streams = found
    file = os.memfd_create("oomph")
    process = os.fork()
    if process == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for stream in streams:
            if stream > 2:
                os.close(stream)
        script = Script(request)
        script.learned = taught
        if taught is None:
            script.notes = file
        else:
            script.declined = file
        return script
    for stream in streams:
        os.close(stream)
    connection.sendall(str(process).encode())
    watched = os.pidfd_open(process)
    readable, _, _ = select.select([watched, connection.fileno()], [], [])
    if watched not in readable:
        os.kill(process, signal.SIGKILL)  # the one that stands for it is gone
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(watched)
    ended(request)
    told(file)
    os.close(file)
    with contextlib.suppress(OSError), connection:
        connection.sendall(str(status).encode())
    return None


def _keep(
    connection: socket.socket,
    server: int,
    ended: Callable[[Request], None],
    pupil: _Pupil | None,
    first: bool,
) -> Script:
    """Fork a process for a request; if it is the first, learn from it. Returns in the process that was forked."""
    found = fork_server.received(connection)
    if found is None:
        os._exit(0)
    if not _is_ordinary(found[0]):
        connection.sendall(b"0")
        os._exit(0)
    if pupil is None or not first:
        if pupil is not None and pupil.asked(connection, *found):
            os._exit(0)
        script = _fork(connection, found, ended, lambda file: None)
        if script is None:
            os._exit(0)
        if script.notes is not None:
            os.close(script.notes)
            script.notes = None
        return script
    notes = b""

    def told(file: int) -> None:
        nonlocal notes
        notes = os.pread(file, os.fstat(file).st_size, 0)
        if notes:
            pupil.theirs.send(_LEARNS)  # before the command can ask for another

    pupil.own.close()
    script = _fork(connection, found, ended, told)
    if script is not None:
        pupil.theirs.close()
        return script
    _end_with(server)
    what = learned.learn(json.loads(notes)) if notes else None
    if what is None:
        os._exit(0)
    gc.collect()
    gc.freeze()
    pupil.theirs.send(_same(found[0]).encode())
    return _teach(pupil.theirs, what, ended)


def _end_with(process: int) -> None:
    """Make the system kill this process when its parent dies; it may have died."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != process:
        os._exit(0)


def _teach(
    channel: socket.socket, what: learned.Learned, ended: Callable[[Request], None]
) -> Script:
    """Fork a process for each request that is passed on; returns in each of them."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    own = os.getpid()
    while True:
        text, files, _, _ = socket.recv_fds(channel, _Pupil.MOST, 4)
        if not text:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            return _taught(json.loads(text), files, what, ended, own)
        for file in files:
            os.close(file)


def _taught(
    request: Request,
    files: list[int],
    what: learned.Learned,
    ended: Callable[[Request], None],
    teacher: int,
) -> Script:
    connection = socket.socket(fileno=files[0])
    if not _is_ordinary(request):
        connection.sendall(b"0")
        os._exit(0)

    def told(file: int) -> None:
        if os.fstat(file).st_size and os.getppid() == teacher:
            os.kill(
                teacher, signal.SIGKILL
            )  # the others are forked from the one that has learned nothing

    script = _fork(connection, (request, files[1:]), ended, told, what)
    if script is None:
        os._exit(0)
    return script


def _serve(listener: socket.socket, owner: int, ended: Callable[[Request], None]) -> Script:
    """Fork a process at each request; returns in each of them, with what was asked."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that keep processes need no waiting for
    own, left = os.getpid(), _TRIES
    pupil: _Pupil | None = None
    while True:
        watched = [owner] if pupil is not None and pupil.learns else [owner, listener.fileno()]
        if pupil is not None:
            watched.append(pupil.own.fileno())
        patience = _Pupil.PATIENCE if pupil is not None and pupil.learns else None
        readable, _, _ = select.select(watched, [], [], patience)
        if owner in readable:
            _leave(listener.getsockname())
        if pupil is not None and (not readable or pupil.own.fileno() in readable):
            learned_nothing = pupil.learns or pupil.teaches is not None
            if not readable or not pupil.hear():
                left = 0 if learned_nothing else left
                pupil.own.close()
                pupil = None
            continue
        connection, _ = listener.accept()
        first = pupil is None and left > 0
        if first:
            pupil, left = _Pupil(), left - 1
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            os.close(owner)
            return _keep(connection, own, ended, pupil, first)
        if first and pupil is not None:
            pupil.theirs.close()
        connection.close()


_TRIES = 3
"""How many runs may end before they tell what they imported."""


def _leave(path: str) -> NoReturn:
    """The command is gone, and may not have removed the directory of its socket."""
    with contextlib.suppress(OSError):
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
    os._exit(0)


def _openblas() -> Iterator[ctypes.CDLL]:
    """NumPy's OpenBLAS, whatever wheels call it."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "openblas" in line}
    for path in paths:
        with contextlib.suppress(OSError):
            yield ctypes.CDLL(path)


def _keep_bytecode(directory: str) -> None:
    """Let Python keep compiled modules in `directory`, if torch has none beside its sources and Python may not write them there.

    Compiling the sources takes longer than the rest of their import. Some installers leave it to the first import, and
    images for containers often forbid it (`PYTHONDONTWRITEBYTECODE`): then each import of each run would compile.
    """
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None or torch.cached is None or sys.pycache_prefix:
        return
    may_write = not sys.dont_write_bytecode and os.access(os.path.dirname(torch.origin), os.W_OK)
    if not may_write and not os.path.exists(torch.cached):
        sys.pycache_prefix, sys.dont_write_bytecode = directory, False


def _allow_threads(count: int) -> None:
    """Let OpenBLAS use as many threads as it would have started with."""
    names = [
        f"{prefix}openblas_set_num_threads{end}" for prefix in ("", "scipy_") for end in ("", "64_")
    ]
    for library in _openblas():
        for name in names:
            if hasattr(library, name):
                getattr(library, name)(count)


def _become(script: Script) -> learned.Notes | None:
    """Make this process the one that was asked for, up to the first line of `oomph.launch`."""
    request = script.request
    fork_server.take_place(request)
    sys.argv[:] = [str(sys.modules[_LAUNCH].__file__), *request["argv"][3:]]
    sys.path[:0] = _paths(request)
    if script.learned is not None:
        script.learned.hide(request, script.decline)
    fork_server.hide_torch(request)
    if script.learned is not None:
        script.learned.offer()
    return None if script.notes is None else learned.Notes(script.notes)


def main(ended: Callable[[Request], None] = lambda request: None) -> None:
    """Serve; in each forked process, run its script. `ended` is told the requests whose process has ended."""
    listener, command = socket.socket(fileno=os.dup(0)), int(sys.argv[1])
    path = listener.getsockname()
    try:
        owner = os.pidfd_open(command)
    except OSError:
        _leave(path)
    if os.getppid() != command:
        _leave(path)  # it died before this process looked
    # They are for the command and the processes that run scripts; this one ends with the command.
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _IGNORED}
    del sys.path[0]  # of `-m`: the command's directory
    if owner in select.select([listener.fileno(), owner], [], [])[0]:
        _leave(path)  # nobody asked
    for directory in sys.argv[2:]:
        _keep_bytecode(directory)
    gc.disable()
    # OpenBLAS follows the variable of OpenMP, too.
    starts_threads = not os.environ.keys() & {learned.BLAS, "OMP_NUM_THREADS"}
    if starts_threads:
        os.environ[learned.BLAS] = "1"
    for name in (*fork_server.PRELOADED, _LAUNCH):
        importlib.import_module(name)
    if starts_threads:
        del os.environ[learned.BLAS]
    sys.modules["oomph._virtual_gpu.dispatch"].register()
    if len(os.listdir("/proc/self/task")) > 1:
        listener.close()  # threads are not forked
        os.close(0)
        select.select([owner], [], [])
        _leave(path)
    gc.collect()
    gc.freeze()
    script = _serve(listener, owner, ended)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    notes = _become(script)
    if starts_threads:
        _allow_threads(len(os.sched_getaffinity(0)))
    launch = sys.modules.pop(_LAUNCH)
    try:
        status = launch.main()
    finally:
        if notes is not None:
            notes.write()
    sys.exit(status)


_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


if __name__ == "__main__":
    main()
