"""Asks a fork server for the process that runs the script, and stands for it.

Signals are passed on, and this process ends as the forked one does. Where no server is there, or it
declines, this process runs the script itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import NoReturn

from oomph import _protocol
from oomph._older_python import orig_argv

_PATIENCE = 180
"""The time limit for the server to import torch, in seconds."""
_LOOK = 0.5
"""How often the process looks whether its parent is still there, in seconds."""


def stand_for_forked() -> None:
    """End as a forked process does, if there is a server that forks one; returns if there is none."""
    server = os.environ.pop(_protocol.FORKS, "")
    # A terminal belongs to a session, and the forked process would share only the descriptor.
    if (
        not server
        or any(os.isatty(stream) for stream in range(3))
        or getattr(sys.flags, "safe_path", False)
    ):
        return
    found = _ask(server)
    if found is not None:
        _stand_for(*found)


def _ask(server: str) -> tuple[socket.socket, int] | None:
    """A connection to the process that was forked, and its id; None if this one must run the script."""
    request = dict(argv=orig_argv, environment=dict(os.environ), directory=os.getcwd())
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_PATIENCE)
    try:
        connection.connect(server)
        text = json.dumps(request).encode()
        socket.send_fds(connection, [len(text).to_bytes(8, "big")], [0, 1, 2])
        connection.sendall(text)
        process = int(connection.recv(16) or b"0")
    except (OSError, ValueError):
        process = 0
    connection.settimeout(_LOOK)
    return (connection, process) if process else None


def _stand_for(connection: socket.socket, process: int) -> NoReturn:
    """End as the process does; it ends with this one."""
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: os.kill(process, number))
    answer = b""
    while not answer:
        try:
            answer = connection.recv(16) or b"1"
        except (TimeoutError, socket.timeout):  # two in Python 3.9
            if os.getppid() != parent:
                os._exit(1)
    status = int(answer)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)
