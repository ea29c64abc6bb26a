"""Ranks that are forked from one process which has imported torch already.

A launcher (torchrun, accelerate) starts each rank as `python -u script.py`, and each imports torch
by itself: seconds of a core and a third of a GiB of memory. Below `oomph run` the launcher's
`subprocess.Popen` asks a server for it, which was started by the same interpreter in the same
environment and has imported torch, but never touched CUDA. It forks twice and the process in
between ends, so that the launcher adopts the rank (`PR_SET_CHILD_SUBREAPER`): its exit status,
signals and process id are those of a child that it started itself.

To the script it is an ordinary start. Torch is not in `sys.modules` until the script imports it, and
where something differs that torch read when it was imported (variables of the environment, a file of
the script's directory that takes a library's name), the process executes Python after all, as the
launcher would have done. All that forked ranks share and others do not is the seed of string hashes.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.machinery
import json
import os
import re
import signal
import socket
import sys
import threading
import types
from collections.abc import Mapping
from typing import Any

from oomph import _protocol
from oomph._protocol import File, RunDirectory
from oomph._virtual_gpu.library import is_forked

_PATIENCE = 180
"""Seconds that the server may take to import torch, or to fork."""

_PRELOADED = ("torch", "torch._dynamo", "oomph._ranks.recording", "oomph._recorder.recorder")
"""What each rank imports: torch, what its first optimizer imports, and what records it."""

# Nothing that is imported here reads these when it is imported.
_LATE = re.compile(
    r"RANK|(LOCAL|GROUP|ROLE|NODE)_RANK|ROLE_NAME|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|MASTER_(ADDR|PORT)"
    r"|CUDA_VISIBLE_DEVICES|(TORCH_)?NCCL_\w+"
    r"|(TORCHELASTIC|ACCELERATE|FSDP|HF|TRANSFORMERS|TOKENIZERS|WANDB)_\w+"
    rf"|{_protocol.PREFIX}\w+"
)

# Of `subprocess.Popen`, since Python 3.10 at least.
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_ARGUMENTS = {
    "args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "shell", "gid", "gids",
    "uid", "umask", "start_new_session", *_PIPES,
}  # fmt: skip
_CLOSE = "_close_pipe_fds"

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that must be the same where torch is imported."""
    return {name: value for name, value in environment.items() if not _LATE.fullmatch(name)}


def _is_single(environment: Mapping[str, str]) -> bool:
    """Whether what torch brings starts no threads when it is imported: they would not be forked."""
    return environment.get("OMP_NUM_THREADS") == "1"


# ---- the launcher's side ----


class _Unavailable(Exception):
    """A rank cannot be forked; it is started as ever."""


class _Client:
    """The server as the launcher sees it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start a server for ranks with this environment. It imports torch meanwhile."""
        import subprocess

        self.environment = _early(environment)
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_PATIENCE)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "oomph._ranks.fork_server"],
                env={**self.environment, _protocol.FORK_SERVER: str(theirs.fileno())}
                | {
                    name: value
                    for name, value in environment.items()
                    if name.startswith(_protocol.PREFIX)
                },
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fork(self, request: dict[str, Any], streams: list[int]) -> int:
        """Fork a rank with these descriptors as its standard streams; returns its process id."""
        before = _child_subreaper()
        _set_child_subreaper(1)
        try:
            text = json.dumps(request).encode()
            socket.send_fds(self._socket, [len(text).to_bytes(8, "big")], streams)
            self._socket.sendall(text)
            reply = json.loads(self._socket.recv(64) or b"0")
        except (OSError, ValueError) as error:
            raise _Unavailable from error
        finally:
            _set_child_subreaper(before)
        if not reply:
            raise _Unavailable
        return reply

    def close(self) -> None:
        """End the server, whatever it is at: it holds nothing."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _how(status: int) -> str:
    """In words how a process ended, by what `subprocess` says of it."""
    if status >= 0:
        return f"it ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (by the system, if this machine's memory ran out)" if name == "SIGKILL" else ""
    return f"it was killed by {name}{hint}"


def _child_subreaper() -> int:
    value = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0)
    return value.value


def _set_child_subreaper(value: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, value, 0, 0, 0)


class Launcher:
    """Lets the ranks that this process starts by `subprocess.Popen` be forked.

    How each of them ended is written beside its record, which one that was killed does not leave.
    """

    def __init__(self, run: RunDirectory) -> None:
        """Nothing is changed before `install`. The ranks' directories are in the run's."""
        self._run = run
        self._client: _Client | None = None
        self._fails = False
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def expect(self) -> None:
        """Start the server while the launcher itself still imports what it needs."""
        # torchrun gives each of several ranks one thread, unless the user says otherwise.
        expected = {"OMP_NUM_THREADS": "1", **os.environ}
        if _is_single(expected):
            self._client = _Client(expected)

    def install(self) -> None:
        """Wrap how `subprocess.Popen` starts a child."""
        import subprocess

        original = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        names = original.__code__.co_varnames[: original.__code__.co_argcount]
        if not (names[1:] and set(names) >= _ARGUMENTS and hasattr(subprocess.Popen, _CLOSE)):
            return  # a Python that starts children in another way
        atexit.register(self._close)

        def execute_child(popen: Any, *args: Any) -> None:
            given = dict(zip(names, (popen, *args), strict=True))
            environment = os.environ if given["env"] is None else given["env"]
            if os.getpid() == self._owner and environment.get("RANK", "").isdigit():
                popen._oomph_rank = f"rank-{environment['RANK']}"
            request = self._request(given)
            if request is not None:
                streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
                with self._lock, contextlib.suppress(_Unavailable):
                    popen.pid = self._fork(
                        request, [n if fd == -1 else fd for n, fd in enumerate(streams)]
                    )
                    popen._child_created = True
                    getattr(popen, _CLOSE)(*(given[name] for name in _PIPES))
                    return
            original(popen, *args)

        handle = subprocess.Popen._handle_exitstatus  # type: ignore[attr-defined]

        @functools.wraps(handle)
        def handle_exit_status(popen: Any, *args: Any, **kwargs: Any) -> None:
            handle(popen, *args, **kwargs)
            rank = popen.__dict__.pop("_oomph_rank", None)
            if rank is not None and popen.returncode:
                own = self._run.rank(rank)
                with contextlib.suppress(OSError):
                    own.make()
                    own.write(File.ENDING, _how(popen.returncode))

        subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
        subprocess.Popen._handle_exitstatus = handle_exit_status  # type: ignore[attr-defined]

    def _request(self, given: dict[str, Any]) -> dict[str, Any] | None:
        """What the server is to be asked, or None where a rank cannot be forked or is none."""
        argv = given["args"]
        environment = os.environ if given["env"] is None else given["env"]
        plain = (
            not self._fails
            and os.getpid() == self._owner
            and isinstance(argv, (list, tuple))
            and len(argv) > 2
            and all(isinstance(word, str) for word in argv)
            and list(argv[:2]) == [sys.executable, "-u"]
            and argv[2].endswith(".py")
            and all(isinstance(x, str) for pair in environment.items() for x in pair)
            and environment.get("RANK", "").isdigit()
            and _is_single(environment)
            and not environment.keys() & {"PYTHONSAFEPATH", "PYTHONINSPECT"}
            and given["close_fds"]
            and not given["shell"]
            and given["umask"] == -1
            and given.get("process_group", -1) == -1  # since Python 3.11
            and not given["pass_fds"]
            and all(
                given[name] is None for name in ("executable", "preexec_fn", "gid", "gids", "uid")
            )
        )
        if not plain:
            return None
        return dict(
            argv=list(argv),
            environment=dict(environment),
            directory=os.fspath(given["cwd"] or os.getcwd()),
            session=bool(given["start_new_session"]),
            launcher=self._owner,
        )

    def _fork(self, request: dict[str, Any], streams: list[int]) -> int:
        client, environment = self._client, request["environment"]
        if client is not None and client.environment != _early(environment):
            client.close()
            client = None
        if client is None:
            client = self._client = _Client(environment)
        try:
            return client.fork(request, streams)
        except _Unavailable:
            self._fails, self._client = True, None
            client.close()
            raise

    def _close(self) -> None:
        if self._client is not None and os.getpid() == self._owner:
            self._client.close()


# ---- the server's side ----


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork a rank at each request; returns in each of them, with what was asked."""
    while True:
        head, streams, _, _ = socket.recv_fds(connection, 8, 3)
        if not head:
            os._exit(0)  # the launcher is gone
        size, text = int.from_bytes(head, "big"), b""
        while len(text) < size:
            part = connection.recv(size - len(text))
            if not part:
                os._exit(0)
            text += part
        request = json.loads(text)
        between = os.fork()
        if between == 0:
            server = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == server:
                os.sched_yield()
            if os.getppid() != request["launcher"]:
                connection.sendall(b"0")  # nobody adopted it
                os._exit(1)
            own = os.getpid()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            if request["session"]:
                os.setsid()
            connection.sendall(str(own).encode())
            connection.close()
            for stream in streams:
                if stream > 2:
                    os.close(stream)
            return request
        os.waitpid(between, 0)
        for stream in streams:
            os.close(stream)


class _Imported:
    """Gives the script torch when it imports it, as the finder of a module that was loaded before."""

    def __init__(self, request: dict[str, Any]) -> None:
        """Take torch out of `sys.modules`."""
        self._request = request
        self._modules = {
            name: module
            for name, module in sys.modules.items()
            if name == "torch" or name.startswith("torch.")
        }
        for name in self._modules:
            del sys.modules[name]

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        known = self._modules[name].__spec__
        spec = importlib.machinery.ModuleSpec(name, _Loader(self), origin=known.origin)
        spec.submodule_search_locations = known.submodule_search_locations
        return spec

    def give_back(self) -> None:
        """The script imports torch."""
        # What it set before may be something that torch reads at that moment.
        if _early(os.environ) != _early(self._request["environment"]):
            start_plainly(self._request)
        sys.meta_path.remove(self)
        sys.modules.update(self._modules)

    def torch(self) -> types.ModuleType:
        return self._modules["torch"]


class _Loader:
    def __init__(self, imported: _Imported) -> None:
        self._imported = imported
        self._spec = imported.torch().__spec__

    def create_module(self, spec: Any) -> types.ModuleType:
        return self._imported.torch()

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec
        self._imported.give_back()


def start_plainly(request: dict[str, Any]) -> None:
    """Become what the launcher wanted to start; the process id and its files stay."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os.execve(sys.executable, request["argv"], request["environment"])


def _shadowed(directory: str) -> bool:
    """Whether a file beside the script takes the name of something that is imported already."""
    try:
        entries = os.listdir(directory)
    except OSError:
        return True
    for entry in entries:
        name = entry.partition(".")[0]
        module = sys.modules.get(name)
        if module is None or name == "__main__":
            continue
        place = os.path.dirname(getattr(module, "__file__", None) or "")
        where = os.path.dirname(place) if hasattr(module, "__path__") else place
        importable = entry.endswith((".py", *importlib.machinery.EXTENSION_SUFFIXES))
        package = os.path.isfile(os.path.join(directory, entry, "__init__.py"))
        first = getattr(module.__spec__, "origin", None) in ("built-in", "frozen")
        if (importable or package) and not first and where != directory:
            return True
    return False


def _become(request: dict[str, Any]) -> str:
    """Make this process the rank that was asked for, up to its script; returns the script's path."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["directory"])
    environment, argv = request["environment"], request["argv"]
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    sys.orig_argv[:] = argv
    sys.argv[:] = argv[2:]
    script = os.path.realpath(argv[2]) if os.path.islink(argv[2]) else os.path.abspath(argv[2])
    sys.path.insert(0, os.path.dirname(script))
    import torch

    forked = torch.cuda._is_in_bad_fork() or is_forked()
    if forked or _shadowed(sys.path[0]) or not os.path.isfile(script):
        start_plainly(request)
    # Generators that draw their seed when they are made; Python's own does so in each fork by itself.
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.meta_path.insert(0, _Imported(request))
    gc.enable()
    return os.path.abspath(argv[2])


def main() -> None:
    """Serve; in each rank, run its script."""
    connection = socket.socket(fileno=int(os.environ.pop(_protocol.FORK_SERVER)))
    connection.set_inheritable(False)
    # Ctrl-C is for the launcher and its ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    del sys.path[0]  # of `-m`: the launcher's directory, which need not be the script's
    from oomph import launch
    from oomph._ranks import recording

    gc.disable()
    for name in _PRELOADED:
        importlib.import_module(name)
    sys.modules["oomph._virtual_gpu.values"].register()
    if len(os.listdir("/proc/self/task")) > 1:
        os._exit(1)  # threads are not forked
    gc.collect()
    gc.freeze()
    path = _become(_serve(connection))
    excepthook = sys.excepthook

    def without_own_frames(kind: Any, error: Any, traceback: Any) -> None:
        traceback = launch.without_own_frames(traceback)
        excepthook(kind, error if error is None else error.with_traceback(traceback), traceback)

    sys.excepthook = without_own_frames
    recording.begin()
    launch.run_script(path)


if __name__ == "__main__":
    main()
