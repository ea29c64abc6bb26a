"""Gets pytest onto a virtual GPU: its library must be loaded before CUDA, so Python is started again, once."""

from __future__ import annotations

import atexit
import dataclasses
import os
import shutil
import sys
import tempfile
from collections.abc import MutableMapping

import pytest

from oomph._older_python import orig_argv
from oomph._oomph import VirtualGpu, parse_size
from oomph._protocol import RANKS, RUN, TESTS, Refused, RunDirectory
from oomph._recorder.session import Session
from oomph._recorder.torch_versions import check_torch
from oomph._testing.options import setting
from oomph._testing.tests import Tests
from oomph._virtual_gpu import library

OLDEST = (8, 0)
"""pytest's first version that has all that is used of it."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def begin(config: pytest.Config, name: str) -> Tests:
    """The plugin that measures this process's tests. Raise `pytest.UsageError` with one line.

    Does not return where the virtual GPU is not loaded yet: this process becomes one in which it is.
    """
    if tuple(map(int, pytest.__version__.split(".")[:2])) < OLDEST:
        raise pytest.UsageError(
            f"--oomph-gpu needs pytest {OLDEST[0]}, this is {pytest.__version__}"
        )
    memory, compute = setting(config, "memory"), setting(config, "compute")
    try:
        budget = None if compute == "none" else _bytes("compute", compute)
        gpu = VirtualGpu(name, _bytes("memory", memory), sys.executable, _PACKAGE)
        unsupported = bool(config.known_args_namespace.oomph_unsupported)
        check_torch(virtual=True, unsupported=unsupported)
        if os.environ.get(TESTS) != str(os.getpid()) and not _is_worker():
            _start_again(gpu)
        if not library.is_loaded():
            raise ValueError(
                "the virtual GPU is not loaded: Python was started without the LD_PRELOAD that was set for it"
            )
        directory = tempfile.mkdtemp(prefix="oomph-tests-")
        atexit.register(_remove, directory, os.getpid())
        os.environ.update(gpu.lend(directory, "half", budget, unsupported))
        run = RunDirectory(directory)
        session = Session(dataclasses.replace(run.settings(), several=False), run, in_parts=True)
        session.begin()
        return Tests(config, gpu, session, without_hook)
    except (Refused, ValueError) as error:
        line = " ".join(str(error).split()).replace("--unsupported", "--oomph-unsupported")
        raise pytest.UsageError(line) from None


def _bytes(name: str, size: str | None) -> int | None:
    try:
        return None if size is None else parse_size(size)
    except ValueError as error:
        raise ValueError(f"--oomph-{name}: {error}") from None


def _is_worker() -> bool:
    """Whether xdist started this process, which cannot start again: it talks to the one that did."""
    return "PYTEST_XDIST_WORKER" in os.environ and "-c" in orig_argv


def _start_again(gpu: VirtualGpu) -> None:
    """Become the same Python with the same arguments, streams, working directory and process id."""
    arguments = orig_argv[1:]
    if not sys.argv[0] or "-" in arguments[:1]:
        raise ValueError(
            "pytest is not started from a file or with -m, so that it cannot be started again on a virtual GPU; "
            "use pytest or python -m pytest"
        )
    if TESTS not in os.environ and library.is_loaded():
        raise ValueError(
            "this pytest runs on a virtual GPU already, that of `oomph run`: leave out one of the two"
        )
    environment = {**os.environ, **dict(gpu.environment()), TESTS: str(os.getpid())}
    environment.pop("CUDA_VISIBLE_DEVICES", None)  # it speaks of the real machine's GPUs
    without_hook(environment)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(sys.executable, [sys.executable, *arguments], environment)


def without_hook(environment: MutableMapping[str, str]) -> None:
    """Python processes with this environment are not recorded: they are no programs of a test."""
    for name in (RANKS, RUN):
        environment.pop(name, None)
    others = environment.get("PYTHONPATH", "").split(os.pathsep)
    hook = os.path.join(_PACKAGE, "_hook")
    if hook in others:
        environment["PYTHONPATH"] = os.pathsep.join(path for path in others if path != hook)


def _remove(directory: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
