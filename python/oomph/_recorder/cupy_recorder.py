"""Records what a script that uses CuPy, and not torch, does with the memory of a virtual GPU.

CuPy's pools get their memory from the driver in chunks that note when they come and go. Their blocks are seen by a
`MemoryHook` of CuPy's, which each thread has for itself: those of other threads than the one that imports CuPy count as memory of
the pool, and not as allocated.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from oomph._import_hooks import on_import
from oomph._protocol import RunDirectory
from oomph._recorder.cupy_draws import Draws
from oomph._recorder.cupy_setup import installed_cupy
from oomph._recorder.cupy_sizes import Sizes
from oomph._recorder.traced_recorder import TracedRecorder

VALUES = "CuPy's results are not computed: arrays read as zeros, isfinite, all, allclose and array_equal as true; what a mask chooses (unique, nonzero) has the expected size where it follows from what cupy.random drew, and else one by the rule --unknown"


class CupyRecorder(TracedRecorder):
    """CuPy: what its default pool did, by source line."""

    label = "CuPy"
    assumed = (("values", VALUES),)

    def __init__(self, directory: RunDirectory, leave: Callable[[int], None], unknown: str) -> None:
        """Changes nothing before `start`. `unknown` is the rule by which masks choose."""
        super().__init__(directory, leave)
        self._sizes_by_rule = Sizes(unknown, self.assumptions)

    def start(self) -> None:
        """Install all hooks; CuPy is about to be imported."""
        on_import("cupy.cuda", self._watch_pools)
        on_import("cupy._core.core", lambda core: self._sizes_by_rule.watch(core.ndarray))
        on_import("cupy._sorting.search", self._sizes_by_rule.watch_search)
        on_import("cupy._statistics.histogram", self._sizes_by_rule.watch_counts)
        draws = self._sizes_by_rule.draws
        on_import("cupyx.scipy.sparse._coo", draws.watch_sparse)
        for module, names in _CHECKS.items():
            on_import(module, functools.partial(_pass, names=names, draws=draws))

    def imported(self, cupy: Any) -> None:
        """CuPy is there."""
        self._sizes_by_rule.draws.watch(cupy)

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

    # ---- what the record says ----

    def is_full(self, error: BaseException) -> bool:
        """Whether `error` is CuPy's, and says that memory ran out."""
        return type(error).__name__ == "OutOfMemoryError" and "Out of memory allocating" in str(
            error
        )

    def needs(self) -> tuple[str, str, int] | None:
        """The package, its extra with NVIDIA's libraries, and the release of CUDA that they are of."""
        major = installed_cupy()
        return None if major is None else (f"cupy-cuda{major}x", "ctk", major)

    def devices(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What each GPU held, in bytes, and which CuPy it is."""
        version = getattr(_cupy(), "__version__", "unknown")
        return self.held(), dict(
            name="cupy", version=version, cuda=self._cuda(), allocator="pool", preallocates=False, limit_bytes=0,
        )  # fmt: skip

    def names(self) -> list[str]:
        """What each GPU is called; none if CuPy was not imported to its end."""
        with contextlib.suppress(Exception):
            runtime = _cupy().cuda.runtime
            count = int(runtime.getDeviceCount())
            return [runtime.getDeviceProperties(index)["name"].decode() for index in range(count)]
        return []

    def _cuda(self) -> str:
        with contextlib.suppress(Exception):
            version = _cupy().cuda.runtime.runtimeGetVersion()
            return f"{version // 1000}.{version % 1000 // 10}"
        return ""


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


def _pass(module: Any, names: tuple[str, ...], draws: Draws) -> None:
    for name in names:
        setattr(module, name, _Passes(getattr(module, name)))
    if "all" in names:
        method = _cupy().ndarray.all

        def all_of(array: Any, *args: Any, **named: Any) -> Any:
            answer = method(array, *args, **named)
            # Not where entries of a sparse matrix are there twice.
            return answer if draws.different else _true(answer)

        _cupy().ndarray.all = all_of


def _true(answer: Any) -> Any:
    """`answer`, whose flags are set as long as it lives if it is an array. What is a plan of a fused kernel stays one."""
    if isinstance(answer, _cupy().ndarray) and answer.flags.c_contiguous and 0 < answer.nbytes <= _MOST_ANSWERS:  # fmt: skip
        # A virtual GPU's memory is address space of the process. The next array in this place reads as zeros again.
        place, size = answer.data.ptr, answer.nbytes
        ctypes.memset(place, 1, size)
        weakref.finalize(answer, ctypes.memset, place, 0, size).atexit = False
    return answer
