"""Measures the allocator's memory, and fits a line through the memory of micro-batches."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

from oomph._training.errors import is_out_of_memory

MARGIN = 0.05
"""The share of the GPU left free by default: fragmentation, libraries, other processes."""

OBSERVATIONS = 32
"""How many measured sizes a model keeps; the oldest go."""


class MemoryModel:
    """Bytes as a line of units (samples, tokens, elements): `base + slope x units`.

    The line is an upper bound of the kept observations: its intercept is raised until no
    observation is above it.
    """

    def __init__(self) -> None:
        """Start without observations."""
        self._seen: dict[float, float] = {}
        self.base = 0.0
        """Bytes that do not depend on the size."""
        self.slope = 0.0
        """Bytes a unit."""

    def __len__(self) -> int:
        """Different sizes seen."""
        return len(self._seen)

    def observe(self, units: float, peak: float) -> None:
        """`units` needed `peak` bytes. The newest observation of a size counts."""
        self._seen.pop(units, None)
        self._seen[units] = peak
        while len(self._seen) > OBSERVATIONS:
            del self._seen[next(iter(self._seen))]
        self._fit()

    def _fit(self) -> None:
        points = list(self._seen.items())
        if len(points) == 1:
            # Through the origin: at worst too conservative above the point.
            units, peak = points[0]
            self.base, self.slope = 0.0, peak / units if units else 0.0
            return
        n = len(points)
        mean_units = sum(u for u, _ in points) / n
        mean_peak = sum(p for _, p in points) / n
        spread = sum((u - mean_units) ** 2 for u, _ in points)
        slope = sum((u - mean_units) * (p - mean_peak) for u, p in points) / spread
        self.slope = max(slope, 0.0)
        self.base = max(p - self.slope * u for u, p in points)

    def predict(self, units: float) -> float:
        """Bytes that `units` will need."""
        return self.base + self.slope * units

    def largest(self, capacity: float) -> float:
        """The largest size whose predicted need is at most `capacity` bytes."""
        if not self._seen or self.slope <= 0:
            return float("inf")
        return max(0.0, (capacity - self.base) / self.slope)

    def clear(self) -> None:
        """Forget everything: the job has changed."""
        self._seen.clear()
        self.base = self.slope = 0.0

    def points(self) -> list[tuple[float, float]]:
        """What was observed: (units, bytes)."""
        return list(self._seen.items())


class GpuMemory:
    """Reads the allocator of one GPU. On other devices there is nothing to read: see `measures`."""

    def __init__(self, device: torch.device) -> None:
        """Watch `device`."""
        self.device = device
        self.measures = device.type == "cuda"
        """Whether memory can be measured here."""
        self.caches = self.measures and (
            "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ
            and torch.cuda.get_allocator_backend() == "native"
        )
        """Whether freed memory stays at hand: PyTorch's own allocator, with its cache on."""
        self._start = (0, 0)

    def allocated(self) -> int:
        """Bytes in tensors now."""
        return self._stat("allocated_bytes", "current")

    def reserved(self) -> int:
        """Bytes that the allocator holds."""
        return self._stat("reserved_bytes", "current")

    def peak(self) -> int:
        """The most bytes in tensors since `begin`."""
        return self._stat("allocated_bytes", "peak")

    def peak_reserved(self) -> int:
        """The most bytes that the allocator held since `begin`."""
        return self._stat("reserved_bytes", "peak")

    def retries(self) -> int:
        """How often the allocator had to empty its cache to serve a request: thrashing."""
        if not self.measures:
            return 0
        return int(torch.cuda.memory_stats_as_nested_dict(self.device).get("num_alloc_retries", 0))

    def _stat(self, name: str, what: str, pool: str = "all") -> int:
        if not self.measures:
            return 0
        stats = torch.cuda.memory_stats_as_nested_dict(self.device)
        return int(stats[name][pool][what]) if name in stats else 0

    def _pools(self, what: str) -> tuple[int, int]:
        if not self.measures:
            return 0, 0
        stats = torch.cuda.memory_stats_as_nested_dict(self.device).get("allocated_bytes")
        if stats is None:
            return 0, 0
        return int(stats["large_pool"][what]), int(stats["small_pool"][what])

    def begin(self) -> None:
        """Begin a measurement: resets the peaks that `torch.cuda.max_memory_*` report."""
        if self.measures:
            torch.cuda.reset_peak_memory_stats(self.device)
            self._start = self._pools("current")

    def peaks_above_start(self) -> tuple[int, int]:
        """Peak bytes since `begin` above those at `begin`: large and small blocks."""
        large, small = self._pools("peak")
        return max(0, large - self._start[0]), max(0, small - self._start[1])

    def usable(self) -> int:
        """Total bytes available to tensors: reserved and free."""
        if not self.measures:
            return 0
        free, total = torch.cuda.mem_get_info(self.device)
        limit = free + self.reserved()
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)
        if fraction is not None:
            limit = min(limit, int(total * fraction(self.device)))
        return limit

    def reserve(self, large: Iterable[int], small: int = 0) -> list[torch.Tensor] | None:
        """Blocks of `large` bytes each, and `small` bytes in small ones: once dropped, they are in the cache.

        None if the memory is not available.
        """
        if not self.measures:
            return []
        try:
            # Small blocks have segments of their own; 1 MiB is the largest that is small.
            return [
                torch.empty(size, dtype=torch.uint8, device=self.device)
                for size in [*large, *[1 << 20] * -(-small // (1 << 20))]
            ]
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return None

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.measures:
            torch.cuda.synchronize(self.device)


def devices_of(tensors: Iterable[torch.Tensor]) -> list[torch.device]:
    """The devices that hold `tensors`, most bytes first."""
    held: dict[torch.device, int] = {}
    for t in tensors:
        held[t.device] = held.get(t.device, 0) + t.numel() * t.element_size()
    return sorted(held, key=lambda device: -held[device])
