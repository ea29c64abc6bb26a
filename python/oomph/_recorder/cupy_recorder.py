"""Records what a script that uses CuPy, and not torch, does with the memory of a virtual GPU.

CuPy's pools get their memory from the driver in chunks that note when they come and go. Their blocks are seen by a
`MemoryHook` of CuPy's, which each thread has for itself: those of other threads than the one that imports CuPy count as memory of
the pool, and not as allocated.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pickle
import re
import sys
import time
import weakref
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from oomph._import_hooks import on_import
from oomph._protocol import File, RunDirectory
from oomph._recorder import segments
from oomph._recorder.cupy_setup import installed_cupy
from oomph._recorder.framework_recorder import FrameworkRecorder
from oomph._user_code import OWN_DIRECTORY
from oomph._virtual_gpu import library

VALUES = "CuPy's results are not computed: arrays read as zeros, isfinite, all, allclose and array_equal as true, and those whose size depends on values (unique, nonzero, sparse sums) are smaller"
MOST_EVENTS = 2_000_000
"""The history's length in events; what comes later counts, but is not in it."""
_MISSING = re.compile(r"(lib\w+\.so\.\d+): cannot open|No such file: (lib\w+\.so\.\d+)")
"""A library that is not found, as the loader and `cuda.pathfinder` name it."""
_DEEPEST = 48
"""Frames of an allocation that are kept."""


class CupyRecorder(FrameworkRecorder):
    """CuPy: what its default pool did, by source line."""

    label = "CuPy"
    assumed = (("values", VALUES),)

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

    def start(self) -> None:
        """Install all hooks; CuPy is about to be imported."""
        on_import("cupy.cuda", self._watch_pools)
        for module, names in _CHECKS.items():
            on_import(module, functools.partial(_pass, names=names))

    def _watch_pools(self, cuda: Any) -> None:
        """Before CuPy makes its own pool."""
        recorder = self

        class Chunk(cuda.memory.Memory):  # type: ignore[misc]
            """Memory from the driver."""

            def __init__(self, size: int) -> None:
                super().__init__(size)
                if size:
                    recorder.chunk(self.device_id, self.ptr, size)

            def __del__(self) -> None:
                if self.size:
                    recorder.chunk_ends(self.device_id, self.ptr)

        class Hook(cuda.memory_hook.MemoryHook):  # type: ignore[misc]
            """The pool's blocks."""

            name = "oomph"

            def malloc_postprocess(self, device_id: int, size: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:  # fmt: skip
                recorder.block(device_id, mem_ptr, mem_size, size)

            def free_postprocess(self, device_id: int, mem_size: int, mem_ptr: int, pmem_id: int) -> None:  # fmt: skip
                recorder.block_ends(device_id, mem_ptr)

        def allocate(size: int) -> Any:
            return cuda.memory.MemoryPointer(Chunk(size), 0)

        class Pool(cuda.MemoryPool):  # type: ignore[misc]
            """A pool whose memory is seen coming and going."""

            def __init__(self, allocator: Any = allocate) -> None:
                super().__init__(allocator)

            def malloc(self, size: int) -> Any:
                try:
                    return super().malloc(size)
                except cuda.memory.OutOfMemoryError as error:
                    # A script may catch it.
                    recorder.runs_out(error)
                    raise

        cuda.MemoryPool = Pool
        Hook().__enter__()

    # ---- what the pool does ----

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
        """The driver gave the pool memory."""
        self._chunks[device, address] = size
        self._count_bytes("reserved", device, size)
        self._add(device, "segment_alloc", address, size, self._stack())

    def chunk_ends(self, device: int, address: int) -> None:
        """The pool gave memory back."""
        size = self._chunks.pop((device, address), None)
        if size is not None:
            self._count_bytes("reserved", device, -size)
            self._add(device, "segment_free", address, size, [])

    def block(self, device: int, address: int, size: int, requested_size: int) -> None:
        """The pool gave a block."""
        frames = self._stack()
        self._blocks[device, address] = dict(
            address=address, size=size, requested_size=requested_size, state="active_allocated", frames=frames
        )  # fmt: skip
        self._count_bytes("allocated", device, size)
        self._add(device, "alloc", address, size, frames)

    def block_ends(self, device: int, address: int) -> None:
        """The pool got a block back."""
        block = self._blocks.pop((device, address), None)
        if block is not None:
            self._count_bytes("allocated", device, -block["size"])
            for action in ("free_requested", "free_completed"):
                self._add(device, action, address, block["size"], [])

    # ---- what the record says ----

    def is_full(self, error: BaseException) -> bool:
        """Whether `error` is CuPy's, and says that memory ran out."""
        return type(error).__name__ == "OutOfMemoryError" and "Out of memory allocating" in str(
            error
        )

    def failed_with(self, error: BaseException) -> None:
        """The script ended with `error`: for want of NVIDIA's libraries, say."""
        lacks = _MISSING.search(str(error))
        if lacks is not None and isinstance(error, ImportError):
            package = f"cupy-cuda{installed_cupy()}x"
            print(
                f'oomph: {package} needs {lacks[1] or lacks[2]}, which is in none of the packages here. Install it: pip install "{package}[ctk]".',
                file=sys.stderr,
            )  # fmt: skip
        super().failed_with(error)

    @property
    def uses_gpu(self) -> bool:
        """Whether CuPy has opened the GPU."""
        usage = library.usage(0)
        return usage is not None and usage.peak > 0

    def devices(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What each GPU held, in bytes, and which CuPy it is."""
        result = []
        for index in range(self._count_of_devices()):
            usage = library.usage(index)
            if usage is None:
                continue
            name = _cupy().cuda.runtime.getDeviceProperties(index)["name"].decode()
            result.append(
                dict(
                    index=index, name=name, total_bytes=usage.total, limit_bytes=usage.limit,
                    peak_allocated_bytes=self._peaks["allocated"].get(index, 0), allocated_bytes=self._sizes["allocated"].get(index, 0),
                    peak_reserved_bytes=self._peaks["reserved"].get(index, 0), reserved_bytes=self._sizes["reserved"].get(index, 0),
                    outside_bytes=usage.context, peak_used_bytes=usage.peak, retries=0, used=usage.peak > 0,
                )
            )  # fmt: skip
        version = getattr(_cupy(), "__version__", "unknown")
        return result, dict(
            name="cupy", version=version, cuda=self._cuda(), allocator="pool", preallocates=False, limit_bytes=0,
        )  # fmt: skip

    def _count_of_devices(self) -> int:
        with contextlib.suppress(Exception):
            return int(_cupy().cuda.runtime.getDeviceCount())
        return 0

    def _cuda(self) -> str:
        with contextlib.suppress(Exception):
            version = _cupy().cuda.runtime.runtimeGetVersion()
            return f"{version // 1000}.{version % 1000 // 10}"
        return ""

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


def _cupy() -> Any:
    return sys.modules.get("cupy")


# ---- checks of values, which pass ----

_CHECKS = {
    "cupy._logic.content": ("isfinite",),
    "cupy._logic.truth": ("all",),
    "cupy._logic.comparison": ("allclose", "array_equal"),
}
"""Where CuPy, which is being imported, takes them from."""
_MOST_ANSWERS = 1 << 16
"""Answers of more bytes than this nobody reads one by one; `all` of them is one."""


class _Passes:
    """A function of CuPy's that asks whether values are as they should be: no kernel has computed them, so they are."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __call__(self, *args: Any, **named: Any) -> Any:
        return _true(self._original(*args, **named))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _pass(module: Any, names: tuple[str, ...]) -> None:
    for name in names:
        setattr(module, name, _Passes(getattr(module, name)))
    if "all" in names:
        method = _cupy().ndarray.all
        _cupy().ndarray.all = lambda array, *args, **named: _true(method(array, *args, **named))


def _true(answer: Any) -> Any:
    """`answer`, whose flags are set as long as it lives if it is an array. What is a plan of a fused kernel stays one."""
    if isinstance(answer, _cupy().ndarray) and answer.flags.c_contiguous and 0 < answer.nbytes <= _MOST_ANSWERS:  # fmt: skip
        # A virtual GPU's memory is address space of the process. The next array in this place reads as zeros again.
        place, size = answer.data.ptr, answer.nbytes
        ctypes.memset(place, 1, size)
        weakref.finalize(answer, ctypes.memset, place, 0, size).atexit = False
    return answer
