"""Servers that fork the processes of `oomph run`, for the tests of this process."""

import contextlib
import os
import socket
import subprocess
import sys

import oomph

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(oomph.__file__)
LIBRARY = os.path.join(PACKAGE, "_vgpu", "libcuda.so.1")
SERVERS = "TESTS_FORK_SERVERS"

# As `oomph run` makes it for scripts on a virtual GPU (`virtual_gpu.rs`). A server declines whatever differs.
VIRTUAL = {
    "LD_PRELOAD": LIBRARY,
    "TRITON_LIBCUDA_PATH": os.path.dirname(LIBRARY),
    "PATH": os.path.join(PACKAGE, "_virtual_gpu", "bin") + ":" + os.environ.get("PATH", ""),
}


@contextlib.contextmanager
def servers(place):
    """Start the servers, which import torch when they are first asked; gives the variables for `oomph`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    owner = os.pidfd_open(os.getpid())
    processes = []
    for name, own in (("virtual", VIRTUAL), ("plain", {})):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place / name))
            listener.listen(8)
            descriptors = listener.fileno(), owner
            processes.append(subprocess.Popen(
                [sys.executable, os.path.join(HERE, "server.py"), *map(str, descriptors)],
                env=environment | own, pass_fds=descriptors, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            ))  # fmt: skip
    os.close(owner)
    paths = [HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        yield {SERVERS: str(place), "PYTHONPATH": ":".join(paths)}
    finally:
        for process in processes:
            process.kill()
            process.wait()
