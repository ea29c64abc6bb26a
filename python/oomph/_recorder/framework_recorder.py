"""Records what a script does with the memory of a virtual GPU through a framework that is not PyTorch."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from oomph._protocol import File, RunDirectory
from oomph._recorder.sources import sources
from oomph._says import say
from oomph._user_code import is_user_file, user_line
from oomph._virtual_gpu import library
from oomph._virtual_gpu.assumptions import Assumptions

FORMAT = "oomph.record/1"
"""The version of the record, as the command reads it."""

_SIZE = re.compile(r"(?:allocate|allocating) ([\d.,]+) ?(bytes|[KMGT]i?B)?")
_UNITS = {"": 1, "bytes": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_MISSING = re.compile(
    r"lib\w+\.so\.\d+: cannot open|No such file: lib\w+\.so\.\d+( or lib\w+\.so\.\d+)*|Missing libdevice|libNVVM cannot"
)
"""A library that is not found, as the loader, `cuda.pathfinder` and Numba name it."""
_LIBRARY = re.compile(r"lib\w+\.so\.\d+")

_SEEN = "_oomph_seen"
"""What marks an error that was counted."""

_TOOLS = (3, 4)
"""Numbers of tools that `sys.monitoring` gives to nobody in particular."""


def requested(message: str) -> int:
    """How many bytes a framework's error says that it asked for, to the message's precision; 0 if it does not say so."""
    found = _SIZE.search(message)
    if found is None:
        return 0
    unit = found[2] or ""
    return int(float(found[1].replace(",", "")) * _UNITS[unit if unit in _UNITS else unit[0]])


class FrameworkRecorder:
    """Watches a framework in this process, and leaves its record in `directory`.

    The figures are those of the framework's own allocator and of the virtual GPU, which counts what the driver gives.
    """

    levers = None

    label = ""
    """What the framework is called."""

    fell_back = ""
    """Why the framework computes on the CPU, if it does."""

    passes = 0
    """How often the script let the framework compute, where that is seen."""

    stopped = False
    """Whether the script was stopped after as many passes as `--steps` asks for."""

    assumed: tuple[tuple[str, str], ...] = ()
    """What every run assumes: kind and words."""

    def __init__(self, directory: RunDirectory, leave: Callable[[int], None]) -> None:
        """Changes nothing before `start`. `leave` ends the process with a status, without a record."""
        self.directory, self._leave = directory, leave
        self.process = os.getpid()
        self.assumptions = Assumptions()
        self._began = time.monotonic()
        self._finished = False
        self._oom: dict[str, Any] | None = None
        self._count = 0
        self._launches = 0

    # ---- what a framework adds ----

    def is_full(self, error: BaseException) -> bool:
        """Whether `error` is the framework's, and says that memory ran out."""
        raise NotImplementedError

    def devices(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What each GPU held, in bytes, and what the record says of the framework."""
        raise NotImplementedError

    @property
    def uses_gpu(self) -> bool:
        """Whether the framework has opened the GPU."""
        raise NotImplementedError

    def needs(self) -> tuple[str, str, int] | None:
        """The package, its extra with NVIDIA's libraries, and the release of CUDA that they are of."""
        return None

    def settle(self) -> None:
        """See errors that have not reached the script."""

    def write_history(self) -> int:
        """Write what the framework's allocator did; how many events that are at most, 0 without a history."""
        return 0

    # ---- memory runs out ----

    def watch_errors(self) -> None:
        """See the framework's errors where they are raised: a script may catch them. Needs Python 3.12."""
        monitoring = getattr(sys, "monitoring", None)
        if monitoring is None:
            return
        tool = next((tool for tool in _TOOLS if monitoring.get_tool(tool) is None), None)
        if tool is None:
            return
        monitoring.use_tool_id(tool, "oomph")
        monitoring.register_callback(tool, monitoring.events.RAISE, self._raised)
        monitoring.set_events(tool, monitoring.events.RAISE)

    def _raised(self, code: Any, offset: int, error: BaseException) -> None:
        self.raises(error)

    def raises(self, error: BaseException) -> None:
        """The thread that calls raises `error`."""
        if not hasattr(error, _SEEN) and self.is_full(error):
            self.runs_out(error)

    def runs_out(self, error: BaseException, asked: int | None = None) -> None:
        """Memory ran out in a call of the thread that calls, which asked for so many bytes; None: as `error` says."""
        # It passes many frames. Its identity would be another error's once it is gone.
        setattr(error, _SEEN, True)
        self.note(error, user_line(), asked)

    def note(self, error: BaseException, location: str, asked: int | None = None) -> None:
        """Memory ran out at `location`."""
        self._count += 1
        used = library.usage(0)
        self._launches = library.launches()
        self._oom = dict(
            device=0, requested_bytes=requested(str(error)) if asked is None else asked, step=0, phase="", module="", location=location,
            free_bytes=used.limit - used.allocated - used.context if used else 0, raised=False,
        )  # fmt: skip

    def failed_with(self, error: BaseException) -> None:
        """The script ended with `error`."""
        self._says_what_is_missing(str(error))
        if not self.is_full(error):
            return
        if not hasattr(error, _SEEN):
            self.note(error, _line_of(error))
        if self._oom is not None:
            self._oom["raised"] = True

    def _says_what_is_missing(self, message: str) -> None:
        lacks, needs = _MISSING.search(message), self.needs()
        if lacks is None or needs is None:
            return
        package, extra, major = needs
        # `cuda.pathfinder` names one for each release of CUDA.
        names = _LIBRARY.findall(lacks[0]) or re.findall(r"libdevice|libNVVM", lacks[0])
        library = next((name for name in names if name.endswith(f".{major}")), names[0])
        say(
            f'{package} needs {library}, which is in none of the packages here. Install it: pip install "{package}[{extra}]".'
        )

    # ---- the end ----

    def is_replaced(self) -> None:
        """Another program takes over the process; on a virtual GPU its card goes on to count it."""

    def finish(self, outcome: dict[str, Any]) -> None:
        """Write `record.json`; once."""
        if self._finished or os.getpid() != self.process:
            return
        self._finished = True
        self.settle()
        if self._oom is not None and library.launches() == self._launches:
            # The script may have caught the error, but computed nothing after it.
            self._oom["raised"] = True
        found, about = self.devices()
        cuda = about.pop("cuda")
        used = [device for device in found if device["used"]]
        if used:
            for kind, what in self.assumed:
                self.assumptions.add(kind, what, "")
        events = self.write_history()
        self.directory.write_json(
            File.RECORD,
            dict(
                format=FORMAT, torch="", framework=about, cuda=cuda, python=sys.version.split()[0],
                argv=sys.argv, process=self.process, virtual=True, seconds=time.monotonic() - self._began,
                outcome=outcome, used_cuda=bool(used), devices=found, steps=0, inferences=self.passes, stopped=self.stopped,
                oom=self._oom, oom_count=self._count, scopes=[], marks=[], boundaries=[], has_scopes=False, max_events=events,
                assumptions=self.assumptions.as_list(), library=library.report(),
                sources=sources(os.path.realpath(self.directory.run.path)),
            ),
        )  # fmt: skip


def _line_of(error: BaseException) -> str:
    """`file:line` of the user's innermost line that `error` passed, or ""."""
    found, traceback = "", error.__traceback__
    while traceback is not None:
        name = traceback.tb_frame.f_code.co_filename
        if is_user_file(name):
            found = f"{name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found
