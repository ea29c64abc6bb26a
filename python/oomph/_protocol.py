"""What passes between the command and the process that runs the script: variables, settings and files.

`oomph run` writes `settings.json` into the run's directory, names it in the environment, and starts
`oomph.launch`. The recorder writes its files into the same directory, and the command reads them when
the script has ended. The command's side is `crates/oomph-job`; `tests/test_protocol.py` holds both
against `crates/oomph-job/tests/protocol.json`.

Nothing heavy is imported here: every process of a run does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import IO, Any

FORMAT = "oomph.settings/1"
"""The version of the settings; any other is refused."""

RUN = "OOMPH_RUN"
"""The path of `settings.json`, for the process that runs the script."""

RANKS = "OOMPH_RANKS"
"""The path of `settings.json`, for all processes of a run of several ranks."""

LAUNCHER = "OOMPH_LAUNCHER"
"""Set for a launcher that `oomph run` knows, and for nothing below it."""

RANK = "OOMPH_RANK"
"""Which rank the processes below belong to: they are not that rank themselves. Set by the rank."""

FORK_SERVER = "OOMPH_FORK_SERVER"
"""The descriptor of a fork server's socket, in its environment. Set by the launcher's process."""

FORKS = "OOMPH_FORKS"
"""The path of the socket of a fork server for scripts. Empty: processes are started."""

FORKS_LOG = "OOMPH_FORKS_LOG"
"""A file for why the fork server of scripts did not learn from one, or what it learned. Set by the user."""

PLAN = "OOMPH_PLAN"
"""The path of a plan that a Python process applies when it imports torch. Set by the user."""

TESTS = "OOMPH_TESTS"
"""The process of a pytest that was started again with the virtual GPU loaded. Set by the plugin, for itself."""

VIRTUAL_GPU = "OOMPH_VGPU"
"""The path of the virtual GPU's properties, for its library."""

NET = "OOMPH_NET"
"""The net is wanted, and how: its library reads that (`crates/oomph-net`)."""

OVERLAY = "OOMPH_OVERLAY"
"""Where what a script on a virtual GPU writes goes: its library reads that (`crates/oomph-overlay`)."""

PREFIX = "OOMPH_"
"""Begins all of them, and those that only the virtual GPU reads."""


class Refused(Exception):
    """The run cannot start; the message says what was expected, what was found and what to do."""


class File(enum.Enum):
    """A file of a run's directory that the recorder reads or writes."""

    MARKER = ".oomph-run"
    """Says that oomph made this directory. `oomph run` removes nothing from one without it."""
    SETTINGS = "settings.json"
    VIRTUAL_GPU = "virtual-gpu.conf"
    """The virtual GPU's properties. The command writes it, `add_cuda_version` adds a line."""
    LOCK = "lock"
    """Locked by the command while the script may run."""
    STATUS = "status"
    """A few words on where the script is, written again and again."""
    RECORD = "record.json"
    SNAPSHOT = "trace.pickle"
    """PyTorch's memory history."""
    BLACK_BOX = "black-box.bin"
    """What is written ahead, should the script not live to write its record: `BoxPart`, `BoxWord`."""
    STACKS = "stacks.txt"
    """Python's stacks of all threads, when the process crashed, was ended by a signal, or did nothing for long."""
    HELD = "held.pickle"
    """What the allocator held when memory last ran out, when the script ended, or when it was last looked at."""
    REFUSAL = "refused.txt"
    """Why the run could not begin."""
    ENDING = "ended.txt"
    """How a rank ended that its launcher saw fail."""
    PLAIN = "plain.json"
    """What the plain run of `oomph drift` measured."""
    PLANNED = "planned.json"
    """The same of the run with the plan."""
    CELL = "cell.py"
    """A cell of a notebook, as a script."""
    PAGE = "index.html"
    """The report, written by the command."""


class BoxPart(enum.IntEnum):
    """Where the parts of the black box begin, in bytes."""

    WORDS = 0
    """64-bit integers, little-endian: `BoxWord`."""
    ABOUT = 2048
    """Whose box it is: JSON with its length (8 bytes) before it."""
    SAMPLES = 8192
    """Two places for the newest look at the process, JSON as above."""
    SERIES = 40960
    """What was held when steps ended: step, time in µs, bytes allocated, bytes reserved."""
    END = 57344


class BoxWord(enum.IntEnum):
    """Numbers at the beginning of the black box, by their places. Times are in µs since the epoch."""

    FORMAT = 0
    PROCESS = 1
    """Its id."""
    STEPS = 2
    """Steps of the optimizer that have ended."""
    PASSES = 3
    """Passes that have begun: calls of outermost modules."""
    PASS_US = 4
    """When the newest began."""
    PHASE = 5
    """One of `PHASES`, by its place."""
    PHASE_US = 6
    """When it began."""
    INFERENCES = 7
    """Passes that have ended of a job that infers."""
    RECORDED = 8
    """Whether everything is being recorded."""
    SLOT = 9
    """Which place has the newest look: 0 none, 2 the first, 3 the second."""
    SAMPLE_US = 10
    HELD_US = 11
    """When the snapshot of what is held was written; 0: never."""
    HELD_WHY = 12
    """`Why`."""
    HELD_STEP = 13
    ENTRIES = 14
    """Of the series."""
    ENDED = 15
    """1: the script has ended by itself, or by a signal that it saw, and its record says how."""
    ASKED = 16
    """The command asks for a snapshot by another number here."""
    ANSWERED = 17
    COMPILED = 18
    """Whether the script compiles its model: passes are not seen then."""
    RING = 64
    """When the newest steps, or passes of a job that infers, ended: the n-th at n modulo `RING_LENGTH`."""


BOX_FORMAT = 1
"""The version of the black box, in its first word."""

RING_LENGTH = 64

PHASES = ("setup", "load", "forward", "backward", "optimizer", "inference", "between")
"""Of a script, as the black box numbers them. The last is between steps."""


class Why(enum.IntEnum):
    """Why a snapshot of what is held was written."""

    LOOK = 1
    """It had changed."""
    OUT_OF_MEMORY = 2
    ENDED = 3
    """The script ended with an exception or by a signal."""
    HANG = 4
    """No pass had begun for long."""


@dataclasses.dataclass(frozen=True)
class Drift:
    """One of the two runs whose outputs `oomph drift` compares."""

    planned: bool
    """Whether it is the second run, with the plan."""
    calls: int
    """How many calls of models are compared."""


@dataclasses.dataclass(frozen=True)
class Fewer:
    """When a script ends after fewer steps than it was asked for."""

    steps: int
    """So many steps it takes at least, unless it needs too much."""
    bytes: int
    """The most that PyTorch's allocator may hold at the end of a step. What holds more ends after the second one, which tells how long
    a step takes."""
    first_bytes: int
    """The most that it may hold at the end of the first step already."""
    seconds: float
    """The most that all steps that are left may take."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the command tells the recorder. The command says all of it: there are no defaults here."""

    virtual: bool
    """Whether the GPU is a virtual one."""
    several: bool
    """Whether the run has several ranks, each in its own process."""
    rehearsal: bool
    """Whether this is one rank of a job whose other ranks are absent."""
    locked: bool
    """Whether the command holds the lock of the run's directory: this process ends when it is released."""
    steps: int | None
    """The script ends after this many optimizer steps (or passes, for inference)."""
    fewer: Fewer | None
    """When it ends after fewer of them."""
    every_optimizer: bool
    """Whether it goes on after them until each of its optimizers has stepped, for some hundred more steps at most."""
    levers: list[dict[str, Any]]
    """What a plan changes in the script: each lever's name and parameters."""
    resize: dict[str, Any]
    """How the job is made smaller or larger: the arguments of `_recorder.resize.Resize`."""
    unknown: str
    """How comparisons of uncomputed values resolve: `half`, `all` or `none` of them are true."""
    compute: int | None
    """All values are computed, in so many bytes of host memory; without it, small and integral ones."""
    unsupported: bool
    """Whether versions of torch are taken that the virtual GPU was not proved with."""
    inference: bool
    """Whether the script only infers, even if it builds an optimizer."""
    fork: bool
    """Whether a launcher's ranks are forked from one process that has imported torch."""
    black_box: bool
    """Whether it is written ahead what the job does, should it be killed."""
    drift: Drift | None
    """Outputs are kept or compared, and memory is not recorded."""
    text: str | None
    """What runs in place of the script's text: the script as a patch would make it."""

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Read the text of `settings.json`.

        Raise `Refused` for another version's, `ValueError` for what is no JSON.
        """
        values = json.loads(text)
        found = values.pop("format", None)
        if found != FORMAT:
            raise Refused(
                f"the command wrote settings of the version {found}, and the script's Python reads "
                f"{FORMAT}: they belong to two versions of oomph. Install the same version in both "
                "environments."
            )
        drift, fewer = values.pop("drift"), values.pop("fewer")
        return cls(
            drift=None if drift is None else Drift(**drift),
            fewer=None if fewer is None else Fewer(**fewer),
            **values,
        )


class RunDirectory:
    """The directory of a run, or that of one of its ranks.

    Records hold the script's arguments and outputs: what is made here is for its owner alone.
    """

    def __init__(self, path: str | os.PathLike[str], run: RunDirectory | None = None) -> None:
        """`run` is the directory of the whole run, if this is one of its ranks'."""
        self.path = os.fspath(path)
        self.run = self if run is None else run

    @classmethod
    def of_settings(cls, path: str) -> RunDirectory:
        """The directory whose `settings.json` has this path."""
        return cls(os.path.dirname(path))

    def make(self) -> None:
        """Make the directory, if there is none, and mark it as one that oomph made."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        self.write(File.MARKER, "")

    def rank(self, name: str) -> RunDirectory:
        """The directory of one rank, which need not be there."""
        return RunDirectory(os.path.join(self.path, name), self)

    def file(self, file: File) -> str:
        """The path of a file."""
        return os.path.join(self.path, file.value)

    def call(self, number: int) -> str:
        """The path of what `oomph drift` keeps of a model's call."""
        return os.path.join(self.path, f"call-{number}.pt")

    def settings(self) -> Settings:
        """What the command says. Raise as `Settings.parse` does, or `OSError` where it says nothing."""
        with open(self.file(File.SETTINGS)) as file:
            return Settings.parse(file.read())

    @contextlib.contextmanager
    def writing(self, file: File) -> Iterator[IO[bytes]]:
        """A file to write to, which takes its name when all of it is there, and otherwise goes."""
        path = self.file(file)
        try:
            with open_private(path + ".part") as out:
                yield out
            os.replace(path + ".part", path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(path + ".part")
            raise

    def write(self, file: File, text: str) -> None:
        """Write a file as a whole: a reader never sees half of it."""
        with self.writing(file) as out:
            out.write(text.encode())

    def write_json(self, file: File, value: Any) -> None:
        """Write a value as JSON, as a whole."""
        self.write(file, json.dumps(value))

    def remove(self, file: File) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.file(file))

    def link(self, file: File, name: File) -> None:
        """Give a file another's name, too, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            part = self.file(name) + ".part"
            try:
                os.link(self.file(file), part)
            except PermissionError:  # not every file system has links
                shutil.copyfile(self.file(file), part)
            os.replace(part, self.file(name))

    def refuse(self, refusal: Refused) -> int:
        """Leave word for the command why the run cannot begin; returns the exit status."""
        self.run.write(File.REFUSAL, str(refusal))
        return 2

    def add_cuda_version(self, major: int, minor: int) -> None:
        """Tell the virtual GPU for which CUDA torch was built: it answers as that runtime.

        The library reads the file when the script first uses CUDA. Only this process knows which torch
        the script will import. Ranks write the same line more than once, which does no harm.
        """
        with open(self.run.file(File.VIRTUAL_GPU), "a") as file:
            file.write(f"cuda_version={major * 1000 + minor * 10}\n")

    def add_framework(self, name: str) -> None:
        """Tell the virtual GPU that the script's kernels are those of framework `name`."""
        with open(self.run.file(File.VIRTUAL_GPU), "a") as file:
            file.write(f"framework={name}\n")

    def is_released(self, wait: bool = False) -> bool:
        """Whether the command that held the lock is gone; `wait` until it is."""
        try:
            with open(self.run.file(File.LOCK)) as file:
                fcntl.flock(file, fcntl.LOCK_SH | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            return False
        return True


class Status:
    """A few words for the command's status line."""

    LENGTH = 96

    def __init__(self, directory: RunDirectory) -> None:
        """Make the file."""
        path = directory.file(File.STATUS)
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def say(self, text: str) -> None:
        """Write `text` over what was there."""
        os.pwrite(self._file, text.encode()[: self.LENGTH].ljust(self.LENGTH), 0)


def open_private(path: str) -> IO[bytes]:
    """A new file that only its owner may read, to write to."""

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW, 0o600)

    return open(path, "wb", opener=opener)


def may_be_rank(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment belongs to a run of several ranks, and is neither the one
    that `oomph.launch` records nor a fork server."""
    return RANKS in environment and not environment.keys() & {RUN, FORK_SERVER}
