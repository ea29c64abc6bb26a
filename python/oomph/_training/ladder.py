"""The ladder: levers, in order of cost, for when even one sample at a time does not fit.

A rung is any object with a `name`, `apply(model)` and `undo(model)`; it must not change results
beyond what its documentation says. A `Ladder` chooses among the levers of `oomph fit`: checkpointing
of as few blocks as save what is missing, of all, offload of activations, the optimizer's state on
the CPU.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import nn

from oomph import _oomph
from oomph._protocol import File, RunDirectory
from oomph._training.block_survey import BlockSurvey
from oomph._training.errors import is_out_of_memory
from oomph._training.memory_model import MARGIN, GpuMemory
from oomph._training.optimizer_guard import STATE_LEVER, OptimizerGuard
from oomph._training.release import clear_error, format_bytes, release_caches
from oomph.levers._shared.base import CannotApply, Lever
from oomph.levers._shared.blocks import repeated
from oomph.levers._shared.job import Job, names
from oomph.levers.checkpoint import is_checkpointed

log = logging.getLogger("oomph")

LINK = 25e9
"""The link to the host in bytes per second, for estimated slowdowns: 16 lanes of PCI Express 4."""

BACKWARD = 2.0
"""The time of a backward pass relative to its forward's, for the same estimates."""

ASKED = re.compile(r"Tried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

Levers = dict[str, list[str]]
"""Names of levers, in order of cost, with the modules that each is for (none for the optimizer's)."""


@runtime_checkable
class Rung(Protocol):
    """A lever that makes a step need less memory."""

    name: str

    def apply(self, model: nn.Module) -> None:
        """Apply the lever; raise `Unsuitable` if it has no effect on the model."""

    def undo(self, model: nn.Module) -> None:
        """Restore the model to its state before `apply`."""


class Unsuitable(Exception):
    """The rung has no effect on this model; the message says why. The next one is tried."""


class ModuleLever:
    """A lever of `oomph.levers` for named modules, applied in the middle of training."""

    def __init__(self, name: str, modules: Sequence[str]) -> None:
        """`modules` as in plan files: the model's class, then the path (`GPT.blocks.0`)."""
        self.lever_name, self.modules = name, list(modules)
        self.name = f"{name} {_oomph.describe_modules(self.modules)}"
        self.job = Job()
        self._lever: Lever | None = None

    def apply(self, model: nn.Module) -> None:
        """Wrap the modules' forward."""
        kind = importlib.import_module(f"oomph.levers.{self.lever_name}").LEVER
        self._lever = lever = kind(modules=self.modules)
        self.job = Job()
        lever.install(self.job)
        try:
            self.job.meet(model)
        except CannotApply as refusal:
            self.undo(model)
            raise Unsuitable(refusal.message) from None
        if lever.places.missing:
            self.undo(model)
            raise Unsuitable(f"{type(model).__name__} has no {', '.join(lever.places.missing)}")

    def undo(self, model: nn.Module) -> None:
        """Leave them alone."""
        if self._lever is not None:
            self._lever.remove()
            self._lever = None


class CheckpointBlocks:
    """Activation checkpointing of a model's repeated blocks: forward runs again in backward.

    Results are the same to the bit: random states, buffers and running statistics (BatchNorm's too)
    are what they would be without it.
    """

    name = "activation checkpointing"

    def __init__(self, blocks: Sequence[nn.Module] | None = None) -> None:
        """`blocks`: which ones; by default all that the model repeats."""
        self._chosen = blocks
        self._lever: ModuleLever | None = None

    def apply(self, model: nn.Module) -> None:
        """Checkpoint the blocks."""
        named = names(model)
        if self._chosen is not None:
            chosen = {id(block) for block in self._chosen}
            blocks = [name for name, module in named.items() if id(module) in chosen]
        else:
            blocks = _blocks(model)
        if not blocks:
            raise Unsuitable(f"{type(model).__name__} has no repeated blocks")
        self._lever = ModuleLever("checkpoint", blocks)
        self._lever.apply(model)

    def undo(self, model: nn.Module) -> None:
        """Remove it."""
        if self._lever is not None:
            self._lever.undo(model)
            self._lever = None


def _blocks(model: nn.Module) -> list[str]:
    """The repeated blocks that are not checkpointed already."""
    if getattr(model, "is_gradient_checkpointing", False):  # Hugging Face's own
        return []
    named = names(model)
    return [name for name in repeated(model) if not is_checkpointed(named[name])]


@dataclass
class _Next:
    """A choice: levers to replace those that are applied."""

    levers: Levers
    saves: int | None
    cost: str


class Ladder:
    """Chooses levers when single samples do not fit; one for each `TrainStep` or callback.

    By default it measures what the failing attempt saves, block by block, and how many bytes
    were missing. It checkpoints as few blocks as save these, then all, then offloads activations
    to host memory, then the optimizer's state. Results stay the same to the bit (for the last
    one: on the same kernels). If memory cannot be measured, half of the blocks come first.

    With `record`, the directory of a run of the same script (`oomph run --out DIR train.py`), the
    planner of `oomph fit` chooses: the cheapest levers predicted to save what is missing.

    With `rungs`, these are tried in their order, and nothing else.
    """

    def __init__(
        self,
        rungs: Sequence[Rung] | None = None,
        *,
        record: str | os.PathLike[str] | None = None,
    ) -> None:
        """See the class. Measures and changes nothing before the first error."""
        if rungs is not None and record is not None:
            raise ValueError(
                "rungs and record: pass one of them; with a record the planner chooses"
            )
        if record is not None and not os.path.isfile(RunDirectory(record).file(File.RECORD)):
            raise ValueError(
                f"record: expected the directory of a run, with record.json in it, as `oomph run --out "
                f"DIR train.py` writes it; found {os.fspath(record)!r}"
            )
        self._own = list(rungs) if rungs is not None else None
        self._record = os.fspath(record) if record is not None else None
        self.applied: list[str] = []
        """The names of the rungs that are applied."""
        self._pulled: list[Rung] = []
        self._active: dict[str, ModuleLever] = {}
        self._levers: Levers = {}
        self._forbidden: set[str] = set()
        self._inside: dict[str, int] = {}
        self._survey: BlockSurvey | None = None
        self._measuring: BlockSurvey | None = None
        self._peak = 0
        self._margin = MARGIN

    @classmethod
    def of(cls, rungs: Ladder | Sequence[Rung] | None) -> Ladder:
        """What `rungs=` may be."""
        return rungs if isinstance(rungs, Ladder) else cls(rungs)

    def bind(
        self,
        model: nn.Module,
        gpu_memory: GpuMemory,
        guards: Mapping[int, OptimizerGuard],
        margin: float = MARGIN,
    ) -> None:
        """Use this model. `guards` are those of its optimizers, which may come later."""
        self._model, self._gpu_memory, self._guards, self._margin = (
            model,
            gpu_memory,
            guards,
            margin,
        )

    # ---- around what is tried ----

    @contextlib.contextmanager
    def measuring(self, wanted: bool) -> Iterator[None]:
        """Wraps an attempt at the smallest size: measures what it saves and how far it gets."""
        if not wanted or self._own is not None:
            yield
            return
        named = names(self._model)
        blocks = {name: named[name] for name in repeated(self._model)}
        self._gpu_memory.begin()
        with BlockSurvey(self._model, blocks, self._gpu_memory) as survey:
            self._measuring = survey
            try:
                yield
            finally:
                self._measuring = None
                self._survey, self._peak = survey, self._gpu_memory.peak()
                checkpointed = self._levers.get("checkpoint", ())
                for name, size in survey.inside.items():
                    if name not in checkpointed:
                        self._inside[name] = size

    @contextlib.contextmanager
    def forward_pass(self) -> Iterator[None]:
        """Around each forward pass of the model with its loss."""
        if self._measuring is not None:
            self._measuring.begin_pass()
        for lever in self._active.values():
            for enter in lever.job.on_enter:
                enter(self._model, (), {})
        try:
            yield
        finally:
            for lever in self._active.values():
                for leave in lever.job.on_leave:
                    leave(self._model, None)

    # ---- choosing ----

    def pull(self, where: str, text: str, samples: int) -> str:
        """Apply the next rung after an error; returns its description, or "" if none is left.

        `where`: forward, backward, …; `text` of the error; `samples` that go through at once.
        """
        if self._own is not None:
            return self._next_of_own(self._own)
        missing = self._missing(where, text)
        while (chosen := self._choose(where, missing, samples)) is not None:
            before = dict(self._levers)
            try:
                changed = self._become(chosen.levers)
            except Unsuitable as problem:
                log.info("%s", problem)
                self._become(before)
                continue
            saves = f"saves {format_bytes(chosen.saves)}" if chosen.saves else "saving not measured"
            return f"{', '.join(changed)} ({saves}; {chosen.cost})"
        return ""

    def _next_of_own(self, rungs: list[Rung]) -> str:
        while rungs:
            rung = rungs.pop(0)
            try:
                rung.apply(self._model)
            except Unsuitable as problem:
                log.info("%s: %s", rung.name, problem)
                continue
            self._pulled.append(rung)
            self.applied.append(rung.name)
            return rung.name
        return ""

    def refused(self, refusal: CannotApply) -> None:
        """A lever failed in the middle of a step; remove it.

        Raises `refusal` where the lever is not one of this ladder.
        """
        if refusal.lever not in self._active:
            raise refusal
        log.info("%s", refusal.message)
        self._forbidden.add(refusal.lever)
        self._become({name: m for name, m in self._levers.items() if name != refusal.lever})

    def rescue(self, failure: str) -> bool:
        """The optimizer's step does not fit in any way: offload its state to the CPU."""
        if self._own is not None or STATE_LEVER in {*self._levers, *self._forbidden}:
            return False
        if self._gpu_memory.device.type != "cuda":
            return False
        size = self._state_bytes()
        try:
            self._become({**self._levers, STATE_LEVER: []})
        except Unsuitable as problem:
            log.info("%s", problem)
            return False
        log.warning(
            "out of memory in the optimizer's step (%s): continuing with %s (saves %s; %s)",
            failure,
            STATE_LEVER,
            format_bytes(size),
            _over_link(size),
        )
        return True

    def _missing(self, where: str, text: str) -> int | None:
        """Bytes that the failed attempt lacked, at least."""
        if not self._gpu_memory.measures or self._survey is None:
            return None
        found = ASKED.search(text)
        asked = float(found[1]) * UNITS[found[2]] if found else 0.0
        room = self._gpu_memory.usable() * (1 - self._margin)
        rest = 0
        if where == "forward":
            checkpointed = self._levers.get("checkpoint", ())
            rest = sum(
                self._saved_inside(name) if name not in checkpointed else 0
                for name in repeated(self._model)
                if name not in self._survey.reached
            )
        # State that the first step creates exists in the second.
        coming = sum(guard.coming() for guard in self._guards.values())
        # At least the requested size, which may not have been available in one piece.
        return int(max(self._peak + asked + coming - room, asked) + rest)

    def _saved_inside(self, name: str) -> int:
        """Bytes; of blocks that no attempt has reached, as many as the others' mean."""
        known = self._inside
        return known.get(name, sum(known.values()) // len(known) if known else 0)

    def _choose(self, where: str, missing: int | None, samples: int) -> _Next | None:
        activations = where in ("forward", "backward")
        if activations and self._record is not None:
            planned = self._planned(missing or 0, samples)
            if planned is not None:
                return planned
        for offer in (self._checkpointing, self._offloading) if activations else ():
            chosen = offer(missing)
            if chosen is not None:
                return chosen
        return self._optimizer_state()

    def _planned(self, missing: int, samples: int) -> _Next | None:
        """The planner's choice, from the record."""
        assert self._record is not None
        try:
            answer = _oomph.next_levers(
                self._record, json.dumps(_as_plan(self._levers)), missing, samples,
                sorted(self._forbidden),
            )  # fmt: skip
        except ValueError as problem:
            log.warning("cannot plan from the record: %s; using measurements instead", problem)
            self._record = None
            return None
        if answer is None:
            return None
        found = json.loads(answer)
        levers = {lever["name"]: lever.get("modules", []) for lever in found["levers"]}
        unknown = {m for modules in levers.values() for m in modules} - set(names(self._model))
        if unknown:
            log.warning(
                "the record is of another model: this %s has no %s; using measurements instead",
                type(self._model).__name__, ", ".join(sorted(unknown)[:3]),
            )  # fmt: skip
            self._record = None
            return None
        return _Next(levers, found["saves"], f"planned: a step takes {found['time_ratio']:.2f}x")

    def _checkpointing(self, missing: int | None) -> _Next | None:
        if "checkpoint" in self._forbidden:
            return None
        done = self._levers.get("checkpoint", [])
        rest = _blocks(self._model)
        if self._inside and not sum(map(self._saved_inside, rest)):
            return None  # frozen, or checkpointed by themselves
        if not rest:
            return None
        count = len(rest)
        if missing is None:
            count = count if done else (count + 1) // 2
        else:
            # Not one by one, in case the figures are too low.
            least = 1 if not done else (count + 3) // 4
            saved = 0
            for number, name in enumerate(rest, 1):
                saved += self._saved_inside(name)
                if saved >= missing and number >= least:
                    count = number
                    break
        chosen = rest[:count]
        saves = sum(map(self._saved_inside, chosen))
        total = len(done) + len(rest)
        # In the model's order: what comes first is needed last.
        own = {*done, *chosen}
        modules = [name for name in repeated(self._model) if name in own]
        return _Next(
            {**self._levers, "checkpoint": modules}, saves, self._recomputing(modules, total)
        )

    def _recomputing(self, modules: list[str], total: int) -> str:
        seconds = self._survey.seconds if self._survey is not None else {}
        share = len(modules) / total
        if sum(seconds.values()) > 0:
            mean = sum(seconds.values()) / len(seconds)
            every = [seconds.get(name, mean) for name in repeated(self._model)]
            share = sum(seconds.get(name, mean) for name in modules) / sum(every)
        return f"a step takes about {1 + share / (1 + BACKWARD):.2f}x"

    def _offloading(self, missing: int | None) -> _Next | None:
        name = "offload_activations"
        survey = self._survey
        if name in {*self._forbidden, *self._levers} or self._gpu_memory.device.type != "cuda":
            return None
        if survey is None:
            return None
        checkpointed = set(self._levers.get("checkpoint", ()))
        blocks = repeated(self._model)
        size = sum(survey.inputs.values())
        size += sum(self._saved_inside(block) for block in blocks if block not in checkpointed)
        modules = blocks
        if survey.root_called:
            modules, size = [type(self._model).__name__], size + survey.outside
        if not modules:
            return None
        return _Next({**self._levers, name: modules}, size, _over_link(size))

    def _optimizer_state(self) -> _Next | None:
        name = STATE_LEVER
        if name in {*self._forbidden, *self._levers} or self._gpu_memory.device.type != "cuda":
            return None
        size = self._state_bytes()
        if not size:
            return None
        return _Next({**self._levers, name: []}, size, _over_link(size))

    def _state_bytes(self) -> int:
        return sum(guard.state_bytes() for guard in self._guards.values())

    # ---- applying ----

    def _become(self, levers: Levers) -> list[str]:
        """Apply these levers and no others; the names of those that were not applied before.

        Raises `Unsuitable`, and forbids the lever, if one cannot be applied.
        """
        changed: list[str] = []
        for name in [name for name in self._active if self._levers[name] != levers.get(name)]:
            self._active.pop(name).undo(self._model)
            del self._levers[name]
        for name, modules in levers.items():
            if name in self._levers:
                continue
            try:
                if name == STATE_LEVER:
                    self._offload_state()
                    changed.append(name)
                else:
                    lever = ModuleLever(name, modules)
                    lever.apply(self._model)
                    self._active[name] = lever
                    changed.append(lever.name)
            except Unsuitable:
                self._forbidden.add(name)
                raise
            self._levers[name] = modules
        self.applied = [
            self._active[name].name if name in self._active else name for name in self._levers
        ]
        return changed

    def _offload_state(self) -> None:
        try:
            for guard in self._guards.values():
                guard.offload()
        except CannotApply as refusal:
            raise Unsuitable(refusal.message) from None
        except RuntimeError as error:  # host memory that can be pinned may be short, too
            if not is_out_of_memory(error):
                raise
            clear_error(error)
            why = f"{STATE_LEVER}: no host memory for the optimizer's state"
            raise Unsuitable(why) from None
        release_caches()

    # ---- what a checkpoint keeps ----

    def state(self) -> list[Any]:
        """The rungs that are applied: names of your own, levers as in plan files."""
        if self._own is not None:
            return [rung.name for rung in self._pulled]
        return _as_plan(self._levers)

    def load(self, state: Sequence[Any]) -> None:
        """Apply the rungs that another process had applied."""
        for entry in state:
            if isinstance(entry, str):
                for rung in [rung for rung in self._own or () if rung.name == entry]:
                    assert self._own is not None
                    self._own.remove(rung)
                    rung.apply(self._model)
                    self._pulled.append(rung)
                    self.applied.append(rung.name)
            elif self._own is None:
                try:
                    self._become({**self._levers, entry["name"]: entry.get("modules", [])})
                except Unsuitable as problem:
                    log.warning("a rung of the checkpoint cannot be applied again: %s", problem)


def _as_plan(levers: Levers) -> list[dict[str, Any]]:
    return [
        {"name": name, "modules": modules} if modules else {"name": name}
        for name, modules in levers.items()
    ]


def _over_link(size: int) -> str:
    """What moving `size` bytes to the host and back costs, at most: other work may hide it."""
    return f"at most {2e3 * size / LINK:.0f} ms per step at {LINK / 1e9:.0f} GB/s"
