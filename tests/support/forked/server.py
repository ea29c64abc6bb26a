"""Forks the processes that run scripts under oomph from one that has imported torch.

Each `oomph run` starts Python and imports torch and the recorder: seconds of a core, where the script of a
test needs less than one. This process has imported them and never used CUDA. `sitecustomize.py` beside it
asks for a process; what is forked looks to its script like one that was started, by the means of the fork
server for ranks (`oomph/_ranks/fork_server.py`). Whatever could differ is declined.

The process that asked stays: `oomph` started it, and it stands for the forked one.
"""

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys

from oomph._ranks import fork_server, launcher

_LATE = {"TORCHINDUCTOR_CACHE_DIR", "COLUMNS", "PYTEST_CURRENT_TEST", "PYTHONPATH", "PWD", "OLDPWD"}
"""Variables that nothing reads on import, beside those of the launcher."""


def early(environment):
    return {k: v for k, v in launcher.early(environment).items() if k not in _LATE}


def received(connection):
    """A request, and the streams that came with it."""
    head, streams, _, _ = socket.recv_fds(connection, 8, 3)
    size, text = int.from_bytes(head, "big"), b""
    while len(text) < size:
        part = connection.recv(size - len(text))
        if not part:
            os._exit(0)
        text += part
    return json.loads(text), streams


def paths(request):
    """The directories in which the process looks for modules first."""
    given = request["environment"].get("PYTHONPATH", "")
    return [request["directory"], *(path for path in given.split(":") if path)]


def is_ordinary(request):
    """Whether a forked process is the same as one that is started."""
    if early(request["environment"]) != early(os.environ):
        return False
    script = request["argv"][3]
    looked = paths(request)
    if script != "-m":
        looked.append(os.path.dirname(os.path.join(request["directory"], script)))
    # oomph's own module of this name records ranks.
    looked = [path for path in looked if os.path.basename(path) != "_hook"]
    return not any(
        os.path.exists(os.path.join(path, "sitecustomize.py")) or fork_server._shadowed(path)
        for path in looked
    )


def keep(connection):
    """Fork a process for the request and tell how it ends; returns in that process, with the request."""
    request, streams = received(connection)
    if not is_ordinary(request):
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
    ended = os.pidfd_open(process)
    readable, _, _ = select.select([ended, connection], [], [])
    if ended not in readable:
        os.kill(process, signal.SIGKILL)  # the one that stands for it is gone
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    note_seconds(request)
    try:
        connection.sendall(str(status).encode())
    finally:
        os._exit(0)


def note_seconds(request):
    """Write down how long the processes of the request used a core, for `tests/support/cpu_seconds.py`."""
    path = os.environ.get("TESTS_FORKED_SECONDS")
    test = request["environment"].get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if path is not None:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(path, "a") as file:
            file.write(f"{used.ru_utime + used.ru_stime:.2f}\t{test}\n")


def serve(listener, owner):
    """Fork a process at each request; returns in each of them, with what was asked."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers need no waiting for
    while True:
        readable, _, _ = select.select([listener, owner], [], [])
        if owner in readable:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            os.close(owner)
            return keep(connection)
        connection.close()


def become(request):
    """Make this process the one that was asked for, up to the first line of `oomph.launch`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["directory"])
    environment = request["environment"]
    for name in [name for name in os.environ if name not in environment]:
        del os.environ[name]
    os.environ.update({k: v for k, v in environment.items() if os.environ.get(k) != v})
    sys.orig_argv[:] = request["argv"]
    sys.argv[:] = [sys.modules["oomph.launch"].__file__, *request["argv"][3:]]
    sys.path[:0] = [path for path in paths(request) if os.path.basename(path) != "_hook"]
    import torch

    torch.default_generator.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    sys.meta_path.insert(0, fork_server._Imported(request))
    gc.enable()


def main():
    listener, owner = (socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
    del sys.path[0]
    if owner in select.select([listener, owner], [], [])[0]:
        return  # nobody asked
    gc.disable()
    for name in (*fork_server._PRELOADED, "oomph.launch"):
        importlib.import_module(name)
    sys.modules["oomph._virtual_gpu.dispatch"].register()
    if len(os.listdir("/proc/self/task")) > 1:
        os._exit(1)  # threads are not forked
    gc.collect()
    gc.freeze()
    become(serve(listener, owner))
    launch = sys.modules.pop("oomph.launch")
    sys.exit(launch.main())


if __name__ == "__main__":
    main()
