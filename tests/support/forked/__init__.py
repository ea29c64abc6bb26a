"""A fork server for the scripts of `oomph run` and `oomph fit`, for the tests of this process."""

import contextlib
import os
import socket
import subprocess
import sys

import oomph

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(oomph.__file__)
LIBRARY = os.path.join(PACKAGE, "_vgpu", "libcuda.so.1")
FORKS = "OOMPH_FORKS"

# As `oomph run` makes it for scripts on a virtual GPU (`virtual_gpu.rs`). The server declines whatever differs.
VIRTUAL = {
    "LD_PRELOAD": LIBRARY,
    "TRITON_LIBCUDA_PATH": os.path.dirname(LIBRARY),
    "PATH": os.path.join(PACKAGE, "_virtual_gpu", "bin") + ":" + os.environ.get("PATH", ""),
    "LD_LIBRARY_PATH": ":".join(
        filter(
            None,
            [os.path.join(os.path.dirname(LIBRARY), "nvml"), os.environ.get("LD_LIBRARY_PATH")],
        )
    ),
    "USE_PYTORCH_KERNEL_CACHE": "0",
    "CUPY_CACHE_IN_MEMORY": "1",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}


@contextlib.contextmanager
def server(place, additional=VIRTUAL):
    """Start the server, which imports torch when it is first asked; gives the variables for `oomph`.

    Without what is `additional` for scripts on a virtual GPU it serves `oomph drift`.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    path = str(place / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(8)
        process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "server.py"), str(os.getpid())],
            env=environment | additional, stdin=listener, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        yield {FORKS: path}
    finally:
        process.kill()
        process.wait()
