"""Forks ranks from one process that has already imported torch.

A launcher (torchrun, accelerate) starts each rank as `python -u script.py`, and each imports torch
by itself: seconds of a core and a third of a GiB of memory. Under `oomph run` the launcher's
`subprocess.Popen` requests the rank from a server, which the same interpreter started in the same
environment and which has imported torch, but never used CUDA. The server forks twice and the process in
between exits, so the launcher adopts the rank (`PR_SET_CHILD_SUBREAPER`): its exit status,
signals and process id are those of a child that the launcher started itself.

The script sees an ordinary start. Torch is not in `sys.modules` until the script imports it. If
something differs that torch read on import (environment variables, a file in
the script's directory with a library's name), the process executes Python after all, as the
launcher would have done. Forked ranks differ from others only in sharing the seed of string hashes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.machinery
import json
import os
import signal
import socket
import sys
import types
from typing import Any

from oomph import _protocol
from oomph._older_python import orig_argv
from oomph._ranks import launcher
from oomph._virtual_gpu.library import is_forked

PRELOADED = ("torch", "torch._dynamo", "oomph._ranks.recording", "oomph._recorder.recorder")
"""What each rank imports: torch, what its first optimizer imports, and what records it."""


def received(connection: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """A request, and the streams that came with it; None if who asked is gone."""
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size:
        part = connection.recv(size - len(text))
        if not part:
            return None
        text += part
    return (json.loads(text), streams) if head else None


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork a rank at each request; returns in each of them, with what was asked."""
    while True:
        found = received(connection)
        if found is None:
            os._exit(0)  # the launcher is gone
        request, streams = found
        between = os.fork()
        if between == 0:
            server = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == server:
                os.sched_yield()
            if os.getppid() != request["launcher"]:
                connection.sendall(b"0")  # it was not adopted
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
    """Provides the loaded torch when the script imports it."""

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
        # The script may have set variables that torch reads on import.
        if launcher.early(os.environ) != launcher.early(self._request["environment"]):
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


def shadowed(directory: str) -> bool:
    """Whether a file beside the script has the name of a module that is already imported."""
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


def take_place(request: dict[str, Any]) -> None:
    """Take the directory, the environment and the words of the process that was asked for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["directory"])
    environment = request["environment"]
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    orig_argv[:] = request["argv"]


def hide_torch(request: dict[str, Any]) -> None:
    """Begin as a process that has not imported torch: it is there when the script imports it."""
    import torch

    # Generators that draw their seed on creation; Python's own reseeds in each fork.
    torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.meta_path.insert(0, _Imported(request))
    gc.enable()


def _become(request: dict[str, Any]) -> str:
    """Make this process the rank that was asked for, up to its script; returns the script's path."""
    take_place(request)
    argv = request["argv"]
    sys.argv[:] = argv[2:]
    script = os.path.realpath(argv[2]) if os.path.islink(argv[2]) else os.path.abspath(argv[2])
    sys.path.insert(0, os.path.dirname(script))
    import torch

    forked = torch.cuda._is_in_bad_fork() or is_forked()
    if forked or shadowed(sys.path[0]) or not os.path.isfile(script):
        start_plainly(request)
    hide_torch(request)
    return os.path.abspath(argv[2])


def main() -> None:
    """Serve; in each rank, run its script."""
    connection = socket.socket(fileno=int(os.environ.pop(_protocol.FORK_SERVER)))
    connection.set_inheritable(False)
    # Ctrl-C is for the launcher and its ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    del sys.path[0]  # of `-m`: the launcher's directory, which need not be the script's
    from oomph._ranks import recording
    from oomph._recorder import script

    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules["oomph._virtual_gpu.dispatch"].register()
    if len(os.listdir("/proc/self/task")) > 1:
        os._exit(1)  # threads are not forked
    gc.collect()
    gc.freeze()
    path = _become(_serve(connection))
    excepthook = sys.excepthook

    def without_own_frames(kind: Any, error: Any, traceback: Any) -> None:
        traceback = script.without_own_frames(traceback)
        excepthook(kind, error if error is None else error.with_traceback(traceback), traceback)

    sys.excepthook = without_own_frames
    recording.begin()
    try:
        script.run_script(path)
    except script.NotPython as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
