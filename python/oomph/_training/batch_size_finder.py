"""Finds the largest batch that fits, and the fastest, with few trials."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from oomph._older_python import zip
from oomph._random_states import RandomStates
from oomph._training.errors import CannotFit, is_out_of_memory
from oomph._training.memory_model import MARGIN, GpuMemory, MemoryModel
from oomph._training.optimizer_guard import first_line
from oomph._training.release import clear_error, format_bytes, release_caches

STEPS = 3
"""Whole steps per trial: the optimizer's state exists only from the second on, and the allocator has
settled by the third."""

CREEP = 0.01
"""If the fit promises less than this relative gain, the rest of the interval is halved instead."""

PROBES = 40
"""More trials than any search needs; ends the search if memory varies erratically."""


@dataclass(frozen=True)
class Probe:
    """One trial of a size."""

    size: int
    fits: bool
    peak: int
    """Peak bytes in tensors; for a failed trial, until the failure."""
    reserved: int
    """Peak bytes reserved by the allocator."""
    seconds: float
    """Of the last step."""
    error: str = ""

    @property
    def per_second(self) -> float:
        """Samples per second, 0 if it did not fit."""
        return self.size / self.seconds if self.fits and self.seconds else 0.0


@dataclass(frozen=True)
class BatchSizes:
    """What `find_batch_size` found."""

    largest: int
    """The largest size that fits."""
    recommended: int
    """The largest size that leaves the margin free."""
    fastest: int
    """The size with most samples a second, of those tried that leave the margin free."""
    base: float
    """Bytes that do not depend on the batch, by the model."""
    per_sample: float
    """Bytes per sample, by the model."""
    probes: list[Probe] = field(repr=False)
    """Every size that was tried, in order."""

    def __str__(self) -> str:
        """A summary in one line."""
        return (
            f"largest {self.largest}, recommended {self.recommended}, fastest {self.fastest}: "
            f"{format_bytes(self.base)} and {format_bytes(self.per_sample)} a sample, "
            f"{len(self.probes)} probes"
        )


class BatchTrials:
    """Tries batches, and restores everything: parameters, buffers, optimizer, random states."""

    def __init__(
        self,
        step: Callable[[Any], Any],
        model: nn.Module | None,
        optimizer: torch.optim.Optimizer | None,
        scaler: Any = None,
        scheduler: Any = None,
    ) -> None:
        """Keep copies on the CPU."""
        self._step = step
        self._model, self._optimizer = model, optimizer
        self._others = [thing for thing in (scaler, scheduler) if thing is not None]
        device = next(model.parameters()).device if model is not None else _current_device()
        self.gpu_memory = GpuMemory(device)
        self._random = RandomStates([device])
        self._saved_model = _on_cpu(model.state_dict()) if model is not None else None
        self._saved_optimizer = _on_cpu(optimizer.state_dict()) if optimizer is not None else None
        self._had_state = optimizer is not None and len(optimizer.state) > 0
        self._saved_others = [_on_cpu(thing.state_dict()) for thing in self._others]
        self._gradients = self._save_gradients()
        self._training = [(m, m.training) for m in model.modules()] if model is not None else []

    def run(self, make: Callable[[], Any], size: int = 1) -> Probe:
        """Whole steps with `make()`, from an empty cache and the optimizer's state at the start.

        Where the first step allocates the state determines the holes left for the second.
        """
        self._clear_gradients()
        if self._optimizer is not None and not self._had_state:
            self._optimizer.state.clear()
        release_caches()
        self.gpu_memory.begin()
        error, seconds = self._attempt(make)
        peak, reserved = self.gpu_memory.peak(), self.gpu_memory.peak_reserved()
        self._clear_gradients()
        release_caches()
        return Probe(size, not error, peak, reserved, seconds, error)

    def _attempt(self, make: Callable[[], Any]) -> tuple[str, float]:
        seconds = 0.0
        try:
            for _ in range(STEPS):
                batch = make()
                self.gpu_memory.synchronize()
                began = time.perf_counter()
                self._step(batch)
                self.gpu_memory.synchronize()
                seconds = time.perf_counter() - began
                del batch
        except CannotFit as error:
            return str(error), 0.0
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            text = first_line(error)
            clear_error(error)
            return text, 0.0
        return "", seconds

    def _clear_gradients(self) -> None:
        if self._model is not None:
            self._model.zero_grad(set_to_none=True)
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=True)

    def _save_gradients(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        parameters = list(self._model.parameters()) if self._model is not None else []
        return [(p, p.grad.detach().cpu().clone()) for p in parameters if p.grad is not None]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        self._clear_gradients()
        if self._optimizer is not None:
            # State created since then would only be overwritten, and would stay.
            self._optimizer.state.clear()
            self._optimizer.load_state_dict(_copied(self._saved_optimizer))
        if self._model is not None and self._saved_model is not None:
            self._model.load_state_dict(self._saved_model)
        for thing, saved in zip(self._others, self._saved_others, strict=True):
            thing.load_state_dict(saved)
        for p, gradient in self._gradients:
            p.grad = gradient.to(p.device)
        for module, training in self._training:
            module.training = training
        self._random.restore()
        release_caches()


def find_batch_size(
    step: Callable[[Any], Any],
    make_batch: Callable[[int], Any],
    *,
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: Any = None,
    scheduler: Any = None,
    start: int = 1,
    maximum: int | None = None,
    multiple_of: int = 1,
    margin: float = MARGIN,
    tolerance: float = 0.005,
) -> BatchSizes:
    """Find the largest batch that fits, and the fastest.

    ::

        def step(batch):
            loss = model(**batch).loss
            loss.backward(); optimizer.step(); optimizer.zero_grad()

        found = oomph.find_batch_size(step, make_batch, model=model, optimizer=optimizer)
        loader = DataLoader(data, batch_size=found.recommended)

    `make_batch(n)` makes a batch of the `n` longest samples, since they determine the peak. `step(batch)`
    is a whole optimizer step. Each size is tried with three steps from an empty cache; the memory of two
    sizes predicts the next one. `model`, `optimizer`, `scaler`, `scheduler` and random states are
    restored; without `model` and `optimizer` the step's effects
    stay.

    `maximum` limits the search (required if memory cannot be measured, as on the CPU). Sizes
    are multiples of `multiple_of`. `tolerance` is the relative accuracy of the largest size;
    0 finds it exactly. Raises `CannotFit` if `start` does not fit.
    """
    if start < 1 or multiple_of < 1:
        raise ValueError("start and multiple_of: expected at least 1")
    if maximum is not None and maximum < start:
        raise ValueError(f"maximum: {maximum} is below start, {start}")
    trials = BatchTrials(step, model, optimizer, scaler, scheduler)
    if not trials.gpu_memory.measures and maximum is None:
        raise ValueError(
            f"memory cannot be measured on {trials.gpu_memory.device}: pass maximum=, or run on a GPU "
            "(a virtual one: `oomph run --gpu NAME script.py`)"
        )
    top = (maximum or 1 << 40) // multiple_of
    search = _Search(max(1, -(-start // multiple_of)), top, tolerance)
    probes: list[Probe] = []
    try:
        capacity = trials.gpu_memory.usable()
        for units in search.sizes(capacity):
            size = units * multiple_of
            probe = trials.run(functools.partial(make_batch, size), size)
            probes.append(probe)
            search.saw(units, probe)
            if not search.good and units == search.start:
                raise CannotFit(
                    f"a batch of {size} does not fit: {probe.error} Try a smaller start, or see "
                    "what `oomph fit` suggests.",
                    probe.error,
                )
        largest = search.good * multiple_of
        limit = trials.gpu_memory.usable() * (1 - margin)
        recommended = largest
        if trials.gpu_memory.measures:
            room = int(search.held.largest(limit)) if len(search.held) > 1 else search.good
            fitting = [p.size for p in probes if p.fits and p.reserved <= limit]
            recommended = max([min(search.good, room) * multiple_of, *fitting, multiple_of])
        tried = {p.size for p in probes}
        for size in _for_speed(recommended, multiple_of):
            if size not in tried and trials.gpu_memory.measures:
                probes.append(trials.run(functools.partial(make_batch, size), size))
        able = [p for p in probes if p.fits and p.size <= recommended]
        fastest = max(able, key=lambda p: p.per_second).size if able else recommended
    finally:
        trials.restore()
    return BatchSizes(
        largest, recommended, fastest, search.needed.base, search.needed.slope / multiple_of, probes
    )


def _for_speed(recommended: int, multiple_of: int) -> list[int]:
    """Sizes to try for speed: the recommended one, and the power of two below it."""
    power = 1 << (recommended.bit_length() - 1)
    return sorted({recommended, power} if power % multiple_of == 0 else {recommended})


class _Search:
    """The next size to try: two small sizes give a line, the line a guess, guesses a bracket."""

    def __init__(self, start: int, top: int, tolerance: float) -> None:
        self.start = start
        self.good = 0
        self.bad = top + 1
        self._tolerance = tolerance
        # Allocated memory gives an upper bound, reserved memory a lower one.
        self.needed = MemoryModel()
        self.held = MemoryModel()

    def saw(self, size: int, probe: Probe) -> None:
        if probe.fits:
            self.good = max(self.good, size)
            if probe.peak:
                self.needed.observe(size, probe.peak)
                self.held.observe(size, probe.reserved)
        else:
            self.bad = min(self.bad, size)

    def sizes(self, capacity: int) -> Iterator[int]:
        yield self.start
        if self.start * 2 < self.bad:
            yield self.start * 2
        for _ in range(PROBES):
            gap = self.bad - self.good
            if gap <= 1 or gap <= self._tolerance * self.good:
                return
            yield self._guess(capacity)

    def _guess(self, capacity: int) -> int:
        """Inside the bracket, where the line says the capacity is reached."""
        low, high = self.good + 1, self.bad - 1
        if len(self.needed) < 2:
            return min(high, self.good * 2) if self.good else low
        at_least, at_most = self.held.largest(capacity), self.needed.largest(capacity)
        ceiling = self.good * 64  # of a line through two small sizes
        if at_least - self.good > CREEP * self.good:
            guess = at_least
        elif at_most >= low:
            # Both ends are close: the middle of what is left.
            guess = (low + min(high, at_most)) / 2
        else:
            guess = low
        if guess > high:
            guess = (low + high) / 2
        return int(max(low, min(high, guess, ceiling)))


def _current_device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(item) for item in value)
    return value


def _copied(value: Any) -> Any:
    """Containers of `value` anew; tensors are the same."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value
