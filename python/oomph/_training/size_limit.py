"""How much of a batch goes through a model at once: learned from errors, measured memory and quiet steps."""

from __future__ import annotations

import logging
from collections.abc import Callable

from oomph._training.memory_model import GpuMemory, MemoryModel

log = logging.getLogger("oomph")

GROW_AFTER = 100
"""Quiet steps before a larger size is tried again; doubled when that fails."""

LEAKED = 64 << 20
"""Additional bytes after a step that do not count as leaked: workspaces, caches."""

SMALLER = 0.97
"""What a failed size is multiplied with if measurements say that it should have fitted."""

FLUSHES = 8
"""Steps in a row in which the allocator empties its cache, before the size is reduced: it may take five to settle."""

INFINITY = float("inf")


class SizeLimit:
    """The most units (samples, elements) at once.

    Callers cut batches into parts: `of_parts(n)` below is the size of the largest of `n` parts.
    """

    def __init__(self, gpu_memory: GpuMemory, grow_after: int = GROW_AFTER) -> None:
        """No limit yet. `grow_after`: steps without trouble before growing again; 0 for never."""
        self.units = INFINITY
        """The limit."""
        self.worked = 0.0
        """The most units that worked."""
        self.memory = MemoryModel()
        """What sizes needed, in bytes above what was allocated before the step."""
        self._gpu_memory = gpu_memory
        self._grow_after = self._patience = grow_after
        self._failed = INFINITY
        self._failed_capacity = INFINITY
        self._worked_capacity = 0.0
        self._calm = self._flushes = 0
        self._grew = False

    def reset(self) -> None:
        """Forget everything: levers have changed the job."""
        self.memory.clear()
        self.worked = 0.0
        self.units = self._failed = INFINITY

    def room(self, capacity: float) -> float:
        """The units that `capacity` bytes are predicted to hold."""
        return self.memory.largest(max(0.0, capacity))

    def allowed(self, capacity: float) -> float:
        """The most units for a step that begins with `capacity` bytes.

        With more memory than when a size failed, that failure counts no more.
        """
        if capacity > self._failed_capacity * 1.03 + LEAKED:
            self.units = self._failed = INFINITY
        if not len(self.memory):
            return self.units
        room = self.room(capacity)
        if capacity > self._worked_capacity * 0.99 - LEAKED:
            room = max(room, self.worked)
        return min(self.units, room)

    def failed(self, units: float, capacity: float) -> float:
        """`units` did not fit into `capacity` bytes; what to try next."""
        if self._grew:
            self._patience *= 2
        self._grew, self._calm = False, 0
        self._failed, self._failed_capacity = units, capacity
        least = max(units / 2, self.worked if self.worked < units else 0.0)
        if len(self.memory) > 1:
            least = max(least, min(self.room(capacity), units * SMALLER))
        return least

    def set(self, units: float) -> None:
        """Nothing larger from now on."""
        self.units = min(self.units, units)
        self.worked = min(self.worked, self.units)

    def quiet(
        self, parts: int, of_parts: Callable[[int], float], capacity: float, flushed: bool
    ) -> None:
        """A step in so many parts worked. `flushed`: the allocator had to empty its cache."""
        units = of_parts(parts)
        if units >= self.worked:
            self.worked, self._worked_capacity = units, capacity
        self._flushes = self._flushes + 1 if flushed else 0
        self._calm = 0 if flushed else self._calm + 1
        if self._flushes >= FLUSHES:
            self.failed(units, capacity)
            self.set(of_parts(parts + 1))
            self._flushes = 0
            if self.units < units:
                log.warning(
                    "the allocator empties its cache in every step: continuing in %d parts",
                    parts + 1,
                )
            return
        if parts == 1 or units < self.units / 2:
            return
        larger = of_parts(parts - 1)
        measured = self._gpu_memory.measures
        fits = not measured or not len(self.memory) or larger <= self.room(capacity)
        if measured and fits and larger < self._failed < INFINITY:
            # Between what works and what does not: try at once.
            middle = (units + self._failed) / 2
            while parts > 2 and of_parts(parts - 2) <= middle:
                parts -= 1
            self.units = of_parts(parts - 1)
        elif self._grow_after and self._calm >= self._patience and larger > self.units:
            self._calm = 0
            if fits:
                self.units, self._failed, self._grew = larger, INFINITY, True
