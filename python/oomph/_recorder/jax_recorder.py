"""Records what a script that uses JAX, and not torch, does with the memory of a virtual GPU.

The figures are those of JAX's own allocator (`Device.memory_stats`) and of the virtual GPU, which counts what the driver gives.
JAX keeps no history of its allocations, so there is none: of the peak it is known how much there was, and not what.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from oomph._import_hooks import on_import
from oomph._protocol import Refused, RunDirectory
from oomph._recorder.framework_recorder import FrameworkRecorder
from oomph._recorder.jax_advice import JaxAdvice
from oomph._recorder.jax_setup import Jax, lacks, lacks_assembler, missing_libraries
from oomph._says import say
from oomph._virtual_gpu import library

VALUES = "JAX's results are not computed: arrays read as zeros, and loops whose number of passes depends on values make none"
PLANNED = "XLA plans a program for the memory that there is: on a GPU with less, the same script may run with a lower peak"
TRIED = "XLA chooses kernels by estimated times, and tries one of Triton's for a matrix product: on a GPU it may choose others"

_ONE_TRITON = "--xla_gpu_override_gemm_autotuner='block_m: 64 block_n: 64 block_k: 32 num_stages: 2 num_warps: 4 num_ctas: 1'"
"""Products by Triton have one time on the virtual clock, whatever their tiles. To compile all that XLA would try takes three
quarters of its time. This one fits into the shared memory of each GPU."""
_KNOW_FLAG = ("0.10.", "0.11.")
"""Versions of JAX that have the flag. XLA ends the process for one that it does not know."""

NONE_WORKED = "XLA's autotuner says NOT_FOUND where it finds no memory to try kernels in, too: then the job needs more memory"

_WAITS = (
    "JAX waits 10 s for memory at each request that fails, here and on a GPU, before it says so"
)

FULL = "RESOURCE_EXHAUSTED"
"""Begins the message of what XLA found no memory for."""


def is_full(error: BaseException) -> bool:
    """Whether `error` is JAX's, and says that memory ran out."""
    return _is_jax(error) and FULL in str(error)


def _is_jax(error: BaseException) -> bool:
    return type(error).__name__ in ("JaxRuntimeError", "XlaRuntimeError")


class JaxRecorder(FrameworkRecorder):
    """JAX: the figures of its allocator (`Device.memory_stats`)."""

    label = "JAX"
    assumed = (("values", VALUES), ("compiler", PLANNED), ("compiler", TRIED))

    def __init__(self, directory: RunDirectory, jax: Jax, leave: Callable[[int], None]) -> None:
        """Changes nothing before `start`."""
        super().__init__(directory, leave)
        self._jax = jax
        self._advice = JaxAdvice()

    def start(self) -> None:
        """Install all hooks; JAX is about to be imported."""
        # What XLA chooses by a virtual GPU's times must not reach a real one.
        os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        flags = os.environ.get("XLA_FLAGS", "")
        if self._jax.version.startswith(_KNOW_FLAG) and "gemm_autotuner" not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} {_ONE_TRITON}".strip()
        on_import("jax._src.hardware_utils", _shows_gpu)
        on_import("jax._src.xla_bridge", self._watch_backends)
        self._advice.watch()
        self.watch_errors()
        if sys.version_info < (3, 12):
            on_import("jax.errors", self._watch_made)

    def _watch_made(self, errors: Any) -> None:
        """See JAX's errors where they are made, which is below the line that waits."""

        original = errors.JaxRuntimeError.__init__

        def begin(error: BaseException, *words: Any, **named: Any) -> None:
            original(error, *words, **named)
            self.raises(error)

        errors.JaxRuntimeError.__init__ = begin

    # ---- the GPU is used, or the run has failed ----

    def _watch_backends(self, bridge: Any) -> None:
        """JAX falls back to the CPU in silence: a run on a GPU ends there."""
        original = bridge.backends

        def backends() -> Any:
            found = original()
            if "cuda" not in found and os.getpid() == self.process:
                self._cannot(lacks(self._jax) or _why_not(bridge, self._jax))
            return found

        bridge.backends = backends

    def _cannot(self, why: str) -> None:
        """JAX cannot use the GPU. Ends the run, unless PyTorch may be what it is about."""
        self.fell_back = why
        if "torch" not in sys.modules:
            sys.stdout.flush()
            self._leave(self.directory.refuse(Refused(why)))

    def raises(self, error: BaseException) -> None:
        """The thread that calls raises `error`. XLA opens the GPU without its assembler, and misses it when it compiles: no program
        runs then, and its error names all the places. A script may catch it."""
        super().raises(error)
        if _is_jax(error) and "ptxas" in str(error):
            missing = lacks_assembler(self._jax)
            if missing is not None:
                self._cannot(missing)

    def is_full(self, error: BaseException) -> bool:
        """Whether `error` is JAX's, and says that memory ran out."""
        return is_full(error)

    def note(self, error: BaseException, location: str, asked: int | None = None) -> None:
        """Memory ran out at `location`. A script that goes on learns why it is slow."""
        super().note(error, location, asked)
        if self._count == 2 and _allocator() == "default":
            say(_WAITS)

    def failed_with(self, error: BaseException) -> None:
        """The script ended with `error`."""
        if "NOT_FOUND" in str(error) and "configs" in str(error):
            self.assumptions.add("compiler", NONE_WORKED, "")
        missing = lacks_assembler(self._jax) if "ptxas" in str(error) else None
        if missing is not None:
            say(missing)
        super().failed_with(error)

    def settle(self) -> None:
        """An array that found no memory says so only to those who wait for it; a script may end without."""
        backend = _cuda_backend()
        for array in backend.live_arrays() if backend is not None and self._oom is None else ():
            try:
                array.block_until_ready()
            except Exception as error:
                if is_full(error):
                    self.note(error, "")

    @property
    def uses_gpu(self) -> bool:
        """Whether JAX has opened the GPU."""
        return _cuda_backend() is not None

    def devices(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What each GPU held, in bytes, and what JAX says of its allocator."""
        backend = _cuda_backend()
        devices = backend.local_devices() if backend is not None else []
        result, limit = [], 0
        for index, device in enumerate(devices):
            usage, stats = library.usage(index), device.memory_stats() or {}
            if usage is None:
                continue
            # Without statistics the driver has given each array its own memory.
            held = usage.peak - min(usage.peak, usage.context)
            limit = max(limit, stats.get("bytes_limit", 0))
            result.append(
                dict(
                    index=index, name=device.device_kind, total_bytes=usage.total, limit_bytes=usage.limit,
                    peak_allocated_bytes=stats.get("peak_bytes_in_use", held), allocated_bytes=stats.get("bytes_in_use", usage.allocated),
                    peak_reserved_bytes=stats.get("peak_pool_bytes") or held, reserved_bytes=stats.get("pool_bytes") or usage.allocated,
                    outside_bytes=usage.context, peak_used_bytes=usage.peak, retries=0,
                    used=bool(stats.get("num_allocs", usage.peak > usage.context)),
                )
            )  # fmt: skip
        return result, dict(
            name="jax", version=self._jax.version, cuda=f"{self._jax.cuda}", allocator=_allocator(),
            preallocates=os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() not in ("0", "false"), limit_bytes=limit,
            moved_bytes=self._advice.moved, advice=self._advice.as_list(),
        )  # fmt: skip


def _allocator() -> str:
    return os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default") or "default"


def _cuda_backend() -> Any:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return getattr(bridge, "_backends", {}).get("cuda")


def _shows_gpu(hardware: Any) -> None:
    """JAX looks for the files of a driver before it asks the driver."""
    hardware.has_visible_nvidia_gpu = lambda: True


def _why_not(bridge: Any, jax: Jax) -> str:
    """Why a JAX that has a plugin and an assembler does not use the GPU."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and "cuda" not in platforms and "gpu" not in platforms:
        return f"JAX_PLATFORMS={platforms} keeps JAX from the GPU: unset it to run on one."
    missing = missing_libraries(jax)
    if missing:
        return (
            f"jax {jax.version} in {sys.prefix} cannot use a GPU: {', '.join(missing)} "
            f'{"is" if len(missing) == 1 else "are"} missing. Install: pip install "jax[cuda{jax.cuda}]=={jax.version}".'
        )
    why = getattr(bridge, "_backend_errors", {}).get("cuda", "").strip()
    return f"JAX fell back to the CPU: {why.splitlines()[0] if why else 'its log above says why'}"
