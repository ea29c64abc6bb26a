"""How long a run is recorded in full: until its steps repeat themselves.

Recording costs the host a few microseconds an operator, which a job that trains for days must not pay. Once
the steps of a script are alike, and its allocator holds no more than before, the record is written and the
hooks leave. What stays is what costs nothing: PyTorch's own history of the newest events, for the moment in
which memory runs out, and a look at what is reserved now and then. When that has grown, or at SIGUSR1, the
hooks come back for as long again.

On a virtual GPU time is no matter, but a long run must not fill the host's memory: see `LongWindow`.
"""

from __future__ import annotations

import itertools
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from oomph._recorder import history
from oomph._recorder.progress import BACKWARD, FORWARD, INFERENCE

LEAST_STEPS = 6
"""Steps in a window: so many are noted in detail, and growth shows in five."""

MOST_STEPS = 40
"""Steps in a window, even if no two were alike."""

PACED_STEPS = 8
"""Steps between waits for the GPU, once after the first window."""

DIFFERENT = 0.05
"""The part of two steps' places and operators that may differ; as the command judges them."""

LOOK_SECONDS = 1.0
"""Between two looks at what is reserved; one takes some ten microseconds."""

REST = 100
"""After a window this many times its length passes before the next: recording stays below one percent."""

EVENTS = 40_000
"""The length of PyTorch's history between windows: some steps, in less than 50 MB."""


class Window:
    """Begins and ends the full record, at the ends of steps."""

    def __init__(
        self, keys: Callable[[], Any], busy: Callable[[], bool], leave: Any, come_back: Any
    ) -> None:
        """`keys()` are the labels of what was allocated so far, in their order, `busy()` whether a module is
        running; `leave()` writes the record and removes the hooks, which `come_back()` restores."""
        self._keys, self._busy = keys, busy
        self._leave, self._come_back = leave, come_back
        self.open = True
        """Whether everything is being recorded."""
        self.recorded: list[tuple[int, int]] = []
        """The first and the last step of each window that has ended."""
        self._first = 1
        self._began = time.monotonic()
        self._seen = 0
        self._before: set[Any] = set()
        self._reserved = 0
        self._held = 0
        """The most that was reserved when the newest window ended."""
        self._next_look = self._next_window = 0.0
        self._asked = False
        self.trial: StackTrial | None = None
        """Between windows, until it is known what history the script does not notice."""
        self.paced: list[tuple[float, float]] = []
        """What some steps took on a real GPU, between waits for it, in seconds: all of it, and until all of it was issued."""
        self._paced_from = 0.0
        """When the newest of these began; 0 before the first."""
        self._paces = False

    def watch_signal(self) -> None:
        """Open a window at SIGUSR1, where nobody else uses it: Slurm's users do."""
        free = signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        if (
            free
            and "SLURM_JOB_ID" not in os.environ
            and threading.current_thread() is threading.main_thread()
        ):
            signal.signal(signal.SIGUSR1, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        self._asked = True

    def step_ended(self, number: int) -> None:
        """Step or pass `number`, counted from 1, is over."""
        if self.open:
            return self._judge(number)
        if self._paces:
            return self._pace()
        if self.trial is not None and self.trial.step_ended():
            self.trial = None
        if self._asked or time.monotonic() >= self._next_look:
            self._look(number)

    def _judge(self, number: int) -> None:
        keys = self._keys()
        work = {key[:3] for key in itertools.islice(keys, self._seen, None) if key[0] in _PHASES}
        before, reserved = self._before, self._reserved
        self._seen, self._before, self._reserved = len(keys), work, most_reserved()
        made = number - self._first + 1
        if number == 1:
            self._began = time.monotonic()  # what was before is the script's own start
        different = len(work ^ before) > DIFFERENT * max(len(work), len(before))
        steady = not different and self._reserved == reserved
        if made < LEAST_STEPS or self._busy() or not (steady or made >= MOST_STEPS):
            return
        self.recorded.append((self._first, number))
        self._leave()
        self.open, self._held = False, self._reserved
        self._paces = not self.paced
        if not self._paces:
            self.trial = StackTrial(EVENTS)
        ended = time.monotonic()
        self._next_window = ended + REST * (ended - self._began)
        self._next_look = ended + LOOK_SECONDS

    def _pace(self) -> None:
        """Wait for the GPU at the end of a step, which tells what the host and what the GPU takes."""
        if torch.cuda.is_current_stream_capturing():
            self._paced_from = 0.0  # nobody may wait now, and nothing runs
            return
        issued = time.perf_counter()
        torch.cuda.synchronize()
        ended = time.perf_counter()
        if self._paced_from:
            self.paced.append((ended - self._paced_from, issued - self._paced_from))
        self._paced_from = ended
        if len(self.paced) == PACED_STEPS:
            self._paces = False
            self.trial = StackTrial(EVENTS)

    def _look(self, number: int) -> None:
        now = time.monotonic()
        self._next_look = now + LOOK_SECONDS
        grew = now >= self._next_window and most_reserved() > self._held
        if (self._asked or grew) and not self._busy():
            self._asked = False
            self._come_back()
            self.trial = None
            self.open, self._began, self._first = True, now, number + 1
            self._seen, self._before = len(self._keys()), set()


class LongWindow(Window):
    """On a virtual GPU all of most runs: it ends when the history is long and memory no longer grows."""

    LEAST_STEPS = 1000
    ALLOCATIONS = 250_000
    """In the window, at least."""
    LOOK_STEPS = 100
    """Between two looks."""

    def __init__(self, leave: Any, come_back: Any) -> None:
        """`leave()` and `come_back()` as for any window."""
        super().__init__(lambda: (), lambda: False, leave, come_back)
        self._allocated = self._allocations = 0

    def step_ended(self, number: int) -> None:
        """Step or pass `number`, counted from 1, is over."""
        if number % self.LOOK_STEPS or not torch.cuda.is_initialized():
            return
        before = self._allocated
        self._allocated = sum(map(torch.cuda.memory_allocated, range(torch.cuda.device_count())))
        if not self.open:
            if most_reserved() > self._held:
                self._come_back()
                self.open, self._first, self._allocations = True, number + 1, allocations()
            return
        is_long = (
            number - self._first >= self.LEAST_STEPS
            and allocations() - self._allocations >= self.ALLOCATIONS
        )
        if is_long and self._allocated <= before:
            self.recorded.append((self._first, number))
            self._leave()
            self.open, self._held = False, most_reserved()


class StackTrial:
    """Between windows, keeps as much of PyTorch's history as the script does not notice.

    Stacks of allocations cost nothing where the host waits for the GPU anyway, and a tenth of a step where the
    GPU waits for the host. So steps with stacks, with events alone and with nothing take turns, and the most
    that makes steps no longer stays.
    """

    TURN, ROUNDS = 8, 2
    """Steps of a turn, and turns of each kind."""
    FREE = 1.005
    """How much longer the median step may be."""

    def __init__(self, events: int) -> None:
        """Begins the first turn; `events` is the length of the history."""
        self._events = events
        self._times: list[list[float]] = [[], [], []]
        self._turn = 0
        self._last: float | None = None
        self._keep(0)

    def _keep(self, kind: int) -> None:
        if kind == 2:
            history.end()
        else:
            history.keep_newest(self._events, ("alloc", None)[kind])

    def step_ended(self) -> bool:
        """Another step is over; whether the trial is, too."""
        now = time.perf_counter()
        times = self._times[self._turn % 3]
        if self._last is not None:
            times.append(now - self._last)
        self._last = now
        if len(times) < self.TURN * (self._turn // 3 + 1):
            return False
        self._turn, self._last = self._turn + 1, None
        over = self._turn == 3 * self.ROUNDS
        if over:
            medians = [statistics.median(times) for times in self._times]
            best = next(kind for kind in range(3) if medians[kind] <= medians[2] * self.FREE)
            self._keep(best)
        else:
            self._keep(self._turn % 3)
        return over


_PHASES = (FORWARD, BACKWARD, INFERENCE)


def allocations() -> int:
    """How often PyTorch's allocator has given memory so far."""
    devices = range(torch.cuda.device_count())
    return sum(torch.cuda.memory_stats(d).get("allocation.all.allocated", 0) for d in devices)


def most_reserved() -> int:
    """The most bytes that PyTorch's allocator held of any one GPU."""
    return max(
        torch.cuda.max_memory_reserved(device) for device in range(torch.cuda.device_count())
    )
