"""The client of `tests/support/forked/server.py`: Python imports it when it starts, in tests.

A process that was started to run a script under oomph asks the server to fork it instead. It then stands
for the forked process: it passes signals on, and ends as that one does. Where the server declines, Python
starts as usual.
"""

import json
import os
import signal
import socket
import sys

SERVERS = "TESTS_FORK_SERVERS"
"""The directory of the servers' sockets: one for scripts on a virtual GPU, one for others."""
_PATIENCE = 180
"""The time limit for the server to import torch, in seconds."""


def own_environment():
    """The variables and the directories of PYTHONPATH that the process would have without this module."""
    # oomph's own module of this name may have run this one as itself.
    here = os.path.dirname(_main.__code__.co_filename)
    environment = {name: value for name, value in os.environ.items() if name != SERVERS}
    paths = [
        path for path in environment.pop("PYTHONPATH", "").split(":") if path not in ("", here)
    ]
    if paths:
        environment["PYTHONPATH"] = ":".join(paths)
    return environment


def ask(server):
    """A connection to the process that was forked, and its id; `None` if Python must start as usual."""
    request = dict(argv=sys.orig_argv, environment=own_environment(), directory=os.getcwd())
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
    connection.settimeout(0.5)
    return (connection, process) if process else None


def stand_for(connection, process):
    """End as the process does; it ends with this one."""
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(process, number))
    status = b""
    while not status:
        try:
            status = connection.recv(16) or b"1"
        except TimeoutError:
            if os.getppid() != parent:
                os._exit(1)
    status = int(status)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _main():
    servers = os.environ.get(SERVERS)
    if servers is None or sys.orig_argv[1:3] != ["-m", "oomph.launch"] or sys.flags.safe_path:
        return
    if any(os.isatty(stream) for stream in range(3)):
        return
    found = ask(os.path.join(servers, "virtual" if "LD_PRELOAD" in os.environ else "plain"))
    if found is not None:
        stand_for(*found)


_main()
