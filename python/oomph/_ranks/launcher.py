"""The launcher's side of the fork server: what torchrun and accelerate start is forked instead.

`fork_server.py` says what is forked, and how it differs from what the launcher would have started.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

from oomph import _protocol
from oomph._older_python import zip
from oomph._protocol import File, RunDirectory

_PATIENCE = 180
"""The time limit for the server to import torch, or to fork, in seconds."""

# No module imported here reads these on import.
_LATE = re.compile(
    r"RANK|(LOCAL|GROUP|ROLE|NODE)_RANK|ROLE_NAME|((LOCAL|GROUP|ROLE)_)?WORLD_SIZE|MASTER_(ADDR|PORT)"
    r"|CUDA_VISIBLE_DEVICES|PYTORCH_NVML_BASED_CUDA_CHECK|(TORCH_)?NCCL_\w+"
    r"|(TORCHELASTIC|ACCELERATE|FSDP|HF|TRANSFORMERS|TOKENIZERS|WANDB)_\w+"
    rf"|{_protocol.PREFIX}\w+"
)

_ALLOCATORS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

# Of `subprocess.Popen`, since Python 3.10 at least.
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_ARGUMENTS = {
    "args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "shell", "gid", "gids",
    "uid", "umask", "start_new_session", *_PIPES,
}  # fmt: skip
_CLOSE = "_close_pipe_fds"

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


def early(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that must be the same when torch is imported."""
    return {
        name: value
        for name, value in environment.items()
        if not _LATE.fullmatch(name) and not is_allocators(name, value)
    }


def is_allocators(name: str, value: str) -> bool:
    """Whether a variable is for PyTorch's allocator, which reads it at the first use of CUDA.

    The name of another allocator is read when torch is loaded.
    """
    return name in _ALLOCATORS and "backend" not in value


def _is_single(environment: Mapping[str, str]) -> bool:
    """Whether importing torch starts no threads: they would not survive the fork."""
    return environment.get("OMP_NUM_THREADS") == "1"


class _Unavailable(Exception):
    """A rank cannot be forked; it starts normally."""


class _Client:
    """The launcher's handle of the server."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start a server for ranks with this environment. It imports torch meanwhile."""
        import subprocess

        self.environment = early(environment)
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
        """End the server at any time: it holds nothing."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _how(status: int) -> str:
    """How a process ended in words, from its return code."""
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
    """Forks the ranks that this process starts with `subprocess.Popen`.

    Writes how each of them ended beside its record, since a killed rank leaves none.
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
        """The request to the server, or None if a process cannot be forked or is not a rank."""
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
        if client is not None and client.environment != early(environment):
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
