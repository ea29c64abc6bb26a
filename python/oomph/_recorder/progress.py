"""How far a script has come: its optimizer steps, the passes of a job that infers, its status line."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import torch

from oomph._older_python import pairwise
from oomph._protocol import PHASES, RING_LENGTH, BoxWord, Fewer, RunDirectory, Status
from oomph._recorder.planned_steps import planned_steps
from oomph._recorder.script import StepsDone

SETUP, LOAD, FORWARD, BACKWARD, OPTIMIZER, INFERENCE = (
    "setup",
    "load",
    "forward",
    "backward",
    "optimizer",
    "inference",
)
"""Phases of a script."""

BETWEEN = "between"
"""The phase from the end of a step to its next pass, in the black box."""

_CODES = {phase: code for code, phase in enumerate(PHASES)}
# Looking a member up in an enumeration takes longer than the store.
_STEPS, _PASSES, _PASS_US, _PHASE, _PHASE_US, _INFERENCES, _RING = map(
    int,
    (
        BoxWord.STEPS, BoxWord.PASSES, BoxWord.PASS_US, BoxWord.PHASE, BoxWord.PHASE_US, BoxWord.INFERENCES,
        BoxWord.RING,
    ),
)  # fmt: skip

MARKED_STEPS = 6
"""Calls of modules, gradients and optimizer state are noted in so many steps; the stacks of later
allocations tell what they are."""

MOST_WAITED = 200
"""Steps of any optimizer that a script goes on for, after those that were asked for, until each optimizer has stepped; passes that it
goes on for until it trains."""

NEWEST_STEPS = 65
"""Steps whose ends are kept for the time of a step: the newest."""


_LEAF = torch.zeros(0, device="cpu", requires_grad=True)


def newest_node() -> int:
    """How many nodes of autograd's this thread made before, as it makes one more; 0 in inference mode, where it makes none."""
    with torch.enable_grad():
        node = _LEAF.view(0).grad_fn
    return 0 if node is None else node._sequence_nr()


def now() -> int:
    """Microseconds since the epoch, the clock of PyTorch's memory history."""
    return time.time_ns() // 1000


class Moment(NamedTuple):
    """A place in the script's course at which a step may have ended."""

    time_us: int
    module_calls: int
    horizon: int
    """The virtual GPU's clock."""
    busy: int
    cpu: int
    """Nanoseconds that long operators on tensors of the CPU have taken so far."""


class Progress:
    """What the script is doing, as the recorder's other parts note it here and read it."""

    __slots__ = (
        "_boundaries", "_busy", "_clock", "_clock_calls", "_cpu_ns", "_ends", "_forget_work", "_horizon", "_log_step", "_nodes", "_probes",
        "_reserved", "_status", "_steps", "ahead", "box", "differentiates", "fewer", "forwards", "functions", "gradients", "in_optimizer", "inferences", "last_step", "loading",
        "module_calls", "part", "pauses", "planned", "running", "seen_forward", "step", "stopped", "time_on_cpu", "trains", "unseen", "waited", "waits", "window", "words",
    )  # fmt: skip

    def __init__(
        self,
        directory: RunDirectory,
        last_step: int | None,
        horizon: Any,
        busy: Any,
        log_step: Any,
        box: Any = None,
        forget_work: Any = None,
    ) -> None:
        """`horizon`, `busy`, `log_step` and `forget_work` are the virtual GPU's clocks and its log of work, None on a real one; `box`
        is the black box, if there is one."""
        self.box = box
        self.words = memoryview(bytearray(2048)).cast("q") if box is None else box.words
        """The black box's: written ahead, should the process be killed."""
        self.last_step = last_step
        """The script ends after so many steps, or passes; None: it ends by itself."""
        self.fewer: Fewer | None = None
        """When it ends after fewer."""
        self.step = 0
        """Steps of the optimizer that have ended."""
        self.part = 0
        """The number of the part of a step that runs: the labels of allocations have it, as its step may be known only later."""
        self._steps = [0]
        """The step of each part."""
        self.inferences = 0
        """Passes that have ended of a job that infers."""
        self.forwards = 0
        """Calls of outermost modules that have returned."""
        self.running: list[tuple[str, int]] = []
        """The modules that are running, the outermost first: the name and call of each (0: none)."""
        self.functions: list[int] = []
        """The calls of the user's functions that are running outside of modules, the outermost first."""
        self.module_calls = 0
        """Calls of all modules, begun."""
        self.seen_forward = False
        """Whether a model has been called."""
        self.stopped = False
        """Whether the script was ended after the steps that were asked for."""
        self.planned: int | None = None
        """Steps that a script that was stopped would have taken; None if its loops do not tell."""
        self.trains = False
        """Whether the script made an optimizer, so that its steps are the optimizer's."""
        self.in_optimizer = 0
        """How many steps of optimizers are in progress, one inside the other."""
        self.differentiates = 0
        """How many backward passes that make a graph (`create_graph=True`) are in progress, one inside the other."""
        self.loading = 0
        """How many functions that load weights are in progress, one inside the other."""
        self.waits: Callable[[], bool] | None = None
        """Whether an optimizer has yet to step, for which the script goes on after its last step; None: it does not."""
        self.waited = 0
        """Steps of any optimizer that it has gone on for."""
        self.ahead: Callable[[], bool] | None = None
        """Whether the script has still to train, so that its passes until then are no steps; None: nobody asks."""
        self.unseen = False
        """Whether the script was ended before it trained."""
        self.window: Any = None
        """How long everything is recorded; None: as long as the script runs."""
        self.gradients = 0
        """Gradients that optimizers have used; each is a node of autograd's, too."""
        self.time_on_cpu: Callable[[], int] | None = None
        """The clock of `Moment.cpu`."""
        self.pauses: Callable[[bool], None] = lambda whether: None
        """Called with True when a step has ended, with False when a pass or a phase begins."""
        self._nodes = self._probes = 0
        """Nodes of autograd's that the script has made, and those that `newest_node` has."""
        self._horizon, self._busy, self._log_step = horizon, busy, log_step
        self._forget_work = forget_work
        self._clock: list[tuple[int, int, int]] = []
        self._clock_calls: list[int] = []
        self._cpu_ns: list[int] = []
        self._boundaries: list[tuple[int, str, int]] = []
        self._ends: deque[int] = deque(maxlen=NEWEST_STEPS)
        self._reserved = ""
        self._status = Status(directory)

    def enter(self, phase: str) -> None:
        """Note in the black box that a phase begins."""
        self.pauses(False)
        words = self.words
        words[_PHASE], words[_PHASE_US] = _CODES[phase], now()

    def begin_pass(self, phase: str) -> None:
        """Note in the black box that a pass begins."""
        self.pauses(False)
        words = self.words
        words[_PASSES] += 1
        words[_PHASE] = _CODES[phase]
        words[_PASS_US] = words[_PHASE_US] = now()

    def forget(self) -> None:
        """A part of the script begins: count from zero."""
        self.step = self.inferences = self.forwards = self.module_calls = self.part = 0
        self._steps = [0]
        self.in_optimizer = self.loading = self.differentiates = 0
        self.seen_forward = False
        for kept in (self._clock, self._clock_calls, self._cpu_ns, self._boundaries, self._ends):
            kept.clear()

    def end_step(self, at: Moment | None = None, logged: bool = True) -> None:
        """The main optimizer has stepped: now, or `at` the newest of `here`. Not `logged`, the work until now is the next
        step's. Raise `StepsDone` after the last step that was asked for."""
        self.step += 1
        if self.step == 1 and self.inferences:
            self._forget_passes()
        if at is not None:
            self._steps[self.part] = self.step
        self._end("step", self.step, at, logged)

    def _forget_passes(self) -> None:
        """A script trains that inferred before: its steps are the optimizer's alone."""
        self.inferences = 0
        for kept in (self._clock, self._clock_calls, self._cpu_ns, self._ends):
            kept.clear()
        if self._forget_work is not None:
            self._forget_work()

    def here(self) -> Moment:
        """This moment, at which a step may turn out to have ended: what follows is another part."""
        self._begin_part()
        return self._now()

    def _now(self) -> Moment:
        horizon, busy = (0, 0) if self._horizon is None else (self._horizon(0), self._busy[2])
        cpu = 0 if self.time_on_cpu is None else self.time_on_cpu()
        return Moment(now(), self.module_calls, horizon, busy, cpu)

    def _begin_part(self) -> None:
        self._steps.append(self.step)
        self.part = len(self._steps) - 1

    def step_of(self, part: int) -> int:
        """The step to which a part belongs."""
        return self._steps[part]

    def end_pass(self) -> None:
        """A pass of a job that infers is over: a forward pass, or a generation. Raise `StepsDone`."""
        self.inferences += 1
        self._end("inference", self.inferences)

    @property
    def is_recorded(self) -> bool:
        """Whether everything is being recorded, which is not so once steps are alike."""
        return self.window is None or self.window.open

    def _end(self, what: str, number: int, at: Moment | None = None, logged: bool = True) -> None:
        was_recorded = self.is_recorded
        place = at or self._now()
        ended = place.time_us
        self._ends.append(ended)
        words = self.words
        words[_STEPS], words[_INFERENCES] = self.step, self.inferences
        words[_RING + number % RING_LENGTH] = words[_PHASE_US] = ended
        words[_PHASE] = _CODES[BETWEEN]
        if self.box is not None:
            self.box.step_ended()
        if was_recorded:
            self._boundaries.append((ended, what, number))
            self._reserved = f" · {torch.cuda.memory_reserved() / 2**30:.1f} GiB reserved"
        if self.window is not None:
            self.window.step_ended(number)
            if self.is_recorded is not was_recorded:
                self._ends.clear()  # recorded steps take longer
        if what == "step" and at is None and self.is_recorded:
            self._begin_part()
        if self._log_step is not None and logged:
            self._nodes = max(self._nodes, newest_node() - self._probes)
            self._probes += 1
            self._log_step(self.module_calls, self._nodes + self.gradients, self.gradients)
        if self._horizon is not None and self.is_recorded:
            self._clock.append((number, place.horizon, place.busy))
            self._clock_calls.append(place.module_calls)
        if self.is_recorded:
            self._cpu_ns.append(place.cpu)
        if self.last_step and (number >= self.last_step or self._are_enough(number)):
            if self._is_too_much(number) or not (
                self._trains_later(number) if what == "inference" else self._goes_on()
            ):
                self._stop()
            self.waited += what == "step"
        if self._horizon is not None and self.is_recorded:
            self.pauses(True)

    def _trains_later(self, number: int) -> bool:
        """Whether the script is to train, and this pass is not yet too many before that."""
        if self.ahead is None or not self.ahead():
            return False
        self.unseen = number >= (self.last_step or 0) + MOST_WAITED
        return not self.unseen

    def end_waiting(self) -> None:
        """An optimizer has stepped whose steps are not the job's. Raise `StepsDone` if the script went on only for it."""
        if self.waited:
            self.waited += 1
            if not self._goes_on():
                self._stop()

    def _goes_on(self) -> bool:
        return self.waits is not None and self.waited < MOST_WAITED and self.waits()

    def _stop(self) -> NoReturn:
        self.stopped = True
        self.planned = planned_steps()
        raise StepsDone

    @property
    def cpu_ns(self) -> int:
        """Nanoseconds of a step, after the first, for long operators on tensors of the CPU: the lower quartile, since other work on
        the machine only adds."""
        steps = sorted(after - before for before, after in pairwise(self._cpu_ns))
        return steps[len(steps) // 4] if steps else 0

    def _is_too_much(self, number: int) -> bool:
        """Whether the allocator holds more than a run is worth that holds so much."""
        if self.fewer is None:
            return False
        most = self.fewer.first_bytes if number == 1 else self.fewer.bytes
        return bool(torch.cuda.memory_reserved() > most)

    def _are_enough(self, number: int) -> bool:
        """Whether no further step is worth its time."""
        if self.fewer is None:
            return False
        if self._is_too_much(number):
            return True
        if number < max(self.fewer.steps, 2):
            return False
        last = min(self.last_step or number, planned_steps() or NEWEST_STEPS)
        took = self._ends[-1] - self._ends[-2]
        return (last - number) * took > self.fewer.seconds * 1e6

    def boundary(self, what: str, number: int) -> None:
        """Note the time at which `what` of step or pass `number` begins or ends."""
        self._boundaries.append((now(), what, number))

    def say(self, phase: str) -> None:
        """Show the step and its phase on the command's status line, and note it in the black box."""
        self.enter(phase)
        counted = self.step if self.trains else self.inferences
        what = phase if self.trains else "pass"
        self._status.say(f"step {counted + 1}, {what}{self._reserved}")

    def say_recorded(self, first: int, last: int) -> None:
        """Show on the status line that the script runs without the recorder now."""
        self._status.say(f"steps {first} to {last} are recorded; the script runs on its own")

    def as_dict(self) -> dict[str, Any]:
        """The record's part of it."""
        return dict(
            steps=self.step,
            inferences=self.inferences,
            stopped=self.stopped,
            planned_steps=self.planned,
            clock=self._clock,
            clock_calls=self._clock_calls,
            boundaries=self._boundaries,
            step_ends=list(self._ends),
        )
