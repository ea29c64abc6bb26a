"""Records each block that a framework on Python's side asks for, by source line: of CuPy's pool, of Numba's arrays."""

from __future__ import annotations

import pickle
import sys
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from oomph._protocol import File, RunDirectory
from oomph._recorder import segments
from oomph._recorder.framework_recorder import FrameworkRecorder
from oomph._user_code import OWN_DIRECTORY
from oomph._virtual_gpu import library

MOST_EVENTS = 2_000_000
"""The history's length in events; what comes later counts, but is not in it."""
_DEEPEST = 48
"""Frames of an allocation that are kept."""


class TracedRecorder(FrameworkRecorder):
    """Chunks of memory from the driver, and the blocks in them."""

    def __init__(self, directory: RunDirectory, leave: Callable[[int], None]) -> None:
        """Changes nothing before `start`."""
        super().__init__(directory, leave)
        self._traces: dict[int, list[dict[str, Any]]] = {}
        self._blocks: dict[tuple[int, int], dict[str, Any]] = {}
        self._chunks: dict[tuple[int, int], int] = {}
        self._sizes: dict[str, dict[int, int]] = {"allocated": {}, "reserved": {}}
        self._peaks: dict[str, dict[int, int]] = {"allocated": {}, "reserved": {}}
        self._frames: dict[tuple[Any, int], dict[str, Any]] = {}
        self._events = 0

    # ---- what a framework adds ----

    def names(self) -> list[str]:
        """What each GPU is called."""
        raise NotImplementedError

    # ---- what the framework does ----

    def _count_bytes(self, kind: str, device: int, size: int) -> None:
        now = self._sizes[kind][device] = self._sizes[kind].get(device, 0) + size
        self._peaks[kind][device] = max(self._peaks[kind].get(device, 0), now)

    def _add(self, device: int, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:  # fmt: skip
        self._events += 1
        if self._events <= MOST_EVENTS:
            self._traces.setdefault(device, []).append(
                dict(action=action, addr=address, size=size, stream=0, device=device, frames=frames, time_us=time.time_ns() // 1000)
            )  # fmt: skip

    def _stack(self) -> list[dict[str, Any]]:
        """The frames of whoever allocates, innermost first, as PyTorch's history has them."""
        found: list[dict[str, Any]] = []
        frame = sys._getframe(2)
        while frame is not None and len(found) < _DEEPEST:
            code, line = frame.f_code, frame.f_lineno
            if not code.co_filename.startswith((OWN_DIRECTORY, "<frozen")):
                key = code, line
                if key not in self._frames:
                    self._frames[key] = dict(
                        filename=code.co_filename, line=line, name=code.co_name
                    )
                found.append(self._frames[key])
            frame = frame.f_back  # type: ignore[assignment]
        return found

    def chunk(self, device: int, address: int, size: int) -> None:
        """The driver gave memory."""
        self._chunks[device, address] = size
        self._count_bytes("reserved", device, size)
        self._add(device, "segment_alloc", address, size, self._stack())

    def chunk_ends(self, device: int, address: int) -> None:
        """The driver got memory back."""
        size = self._chunks.pop((device, address), None)
        if size is not None:
            self._count_bytes("reserved", device, -size)
            self._add(device, "segment_free", address, size, [])

    def block(self, device: int, address: int, size: int, requested_size: int) -> None:
        """A block of it is in use."""
        frames = self._stack()
        self._blocks[device, address] = dict(
            address=address, size=size, requested_size=requested_size, state="active_allocated", frames=frames
        )  # fmt: skip
        self._count_bytes("allocated", device, size)
        self._add(device, "alloc", address, size, frames)

    def block_ends(self, device: int, address: int) -> None:
        """A block is free again."""
        block = self._blocks.pop((device, address), None)
        if block is not None:
            self._count_bytes("allocated", device, -block["size"])
            for action in ("free_requested", "free_completed"):
                self._add(device, action, address, block["size"], [])

    # ---- what the record says ----

    @property
    def uses_gpu(self) -> bool:
        """Whether the framework has opened the GPU."""
        usage = library.usage(0)
        return usage is not None and usage.peak > 0

    def held(self) -> list[dict[str, Any]]:
        """What each GPU held, in bytes."""
        result = []
        for index, name in enumerate(self.names()):
            usage = library.usage(index)
            if usage is None:
                continue
            result.append(
                dict(
                    index=index, name=name, total_bytes=usage.total, limit_bytes=usage.limit,
                    peak_allocated_bytes=self._peaks["allocated"].get(index, 0), allocated_bytes=self._sizes["allocated"].get(index, 0),
                    peak_reserved_bytes=self._peaks["reserved"].get(index, 0), reserved_bytes=self._sizes["reserved"].get(index, 0),
                    outside_bytes=usage.context, peak_used_bytes=usage.peak, retries=0, used=usage.peak > 0,
                )
            )  # fmt: skip
        return result

    def write_history(self) -> int:
        """Write the snapshot, in the form of PyTorch's."""
        if not self._traces:
            return 0
        count = max(self._traces) + 1
        found = []
        for device in range(count):
            chunks = sorted((at, size) for (of, at), size in self._chunks.items() if of == device)
            starts = [at for at, _ in chunks]
            # A pool that the script gave an allocator of its own has blocks elsewhere.
            blocks = [
                self._blocks[key]
                for key in sorted(self._blocks)
                if key[0] == device
                and (place := bisect_right(starts, key[1]))
                and key[1] < sum(chunks[place - 1])
            ]
            own = [segments.segment(device, at, size, expandable=False) for at, size in chunks]
            found += segments.filled(own, blocks)
        snapshot = dict(
            segments=found,
            device_traces=[self._traces.get(device, []) for device in range(count)],
            allocator_settings={},
        )
        with self.directory.writing(File.SNAPSHOT) as file:
            pickle.dump(snapshot, file, protocol=4)
        return MOST_EVENTS
