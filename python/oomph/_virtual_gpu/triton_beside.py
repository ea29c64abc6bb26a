"""Compiles Triton's kernels in a thread while the program, which launches them without their code, goes on.

A launch computes nothing on a virtual GPU. Whether a kernel can be compiled, and the GPU has what it needs, is said in the end.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from oomph._import_hooks import on_import
from oomph._virtual_gpu.triton_launcher import Launcher


class _Later:
    """A kernel that is being compiled."""

    def __init__(
        self, compiled: Callable[[], Any], enter: Callable[[Any], None], beside: Future[Any]
    ) -> None:
        self._compiled = compiled
        self._enter = enter
        self.beside = beside

    def result(self) -> Any:
        """The kernel, as Triton finds it from now on; raise what its compiler raises. Compiled here if the thread has not begun."""
        kernel = self._compiled() if self.beside.cancel() else self.beside.result()
        self._enter(kernel)
        return kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result(), name)


class KernelsBeside:
    """For a part of a program that launches many kernels for the first time."""

    def __init__(self) -> None:
        """Kernels are compiled where they are launched until `begin`."""
        self._thread: ThreadPoolExecutor | None = None
        self._kernels: dict[str, _Later] = {}
        self._tuning = False
        on_import("triton.runtime.jit", self._watch)
        on_import("triton.runtime.autotuner", self._watch_tuning)

    def begin(self) -> None:
        """From now on kernels are compiled beside, where this process may use a second core."""
        if self._thread is None and len(os.sched_getaffinity(0)) > 1:
            self._thread = ThreadPoolExecutor(1, "oomph-triton")

    def finish(self) -> None:
        """Until all kernels are compiled; raise what Triton does where one cannot be, or needs more than the GPU has."""
        if self._thread is None:
            return
        from triton import knobs

        try:
            # Somebody may listen for kernels that are compiled late; these are not.
            with knobs.runtime.scope():
                knobs.runtime.jit_post_compile_hook = None
                # This thread begins at the end of those that wait.
                for later in reversed(self._kernels.values()):
                    later.result()._init_handles()
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread, self._kernels = None, {}

    def submit(self, key: str, compiled: Callable[[], Any], enter: Callable[[Any], None]) -> Any:
        """Called by Triton, as its own `AsyncCompileMode` is."""
        assert self._thread is not None
        later = self._kernels.get(key)
        if later is None:
            later = self._kernels[key] = _Later(compiled, enter, self._thread.submit(compiled))
        return later.result() if later.beside.done() else later

    def _watch(self, jit: Any) -> None:
        try:
            from triton.runtime._async_compile import active_mode
        except ImportError:  # an older release
            return
        run = jit.JITFunction.run

        @functools.wraps(run)
        def run_beside(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            now = self._thread is None or self._tuning or warmup
            if not now and not torch.cuda.is_current_stream_capturing():
                token = active_mode.set(self)
                try:
                    found = run(kernel, *args, grid=grid, warmup=True, **kwargs)
                finally:
                    active_mode.reset(token)
                if isinstance(found, _Later):
                    _launch(kernel, grid, args, kwargs)
                    return found
            return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

        jit.JITFunction.run = run_beside

    def _watch_tuning(self, autotuner: Any) -> None:
        """Trials of an autotuner, which passes over kernels that need too much, compile where they are."""
        bench = autotuner.Autotuner._bench

        @functools.wraps(bench)
        def bench_here(*args: Any, **kwargs: Any) -> Any:
            self._tuning = True
            try:
                return bench(*args, **kwargs)
            finally:
                self._tuning = False

        autotuner.Autotuner._bench = bench_here


def _launch(kernel: Any, grid: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Launch a kernel of which no more is known than its name and its arguments."""
    given = {name: kwargs[name] for name in kernel.arg_names if name in kwargs}
    bound = kernel.signature.bind(*args, **given)
    bound.apply_defaults()
    sizes = grid(bound.arguments) if callable(grid) else grid
    x, y, z = (*sizes, 1, 1)[:3]
    values = list(bound.arguments.values())
    launcher = Launcher(["*" if hasattr(value, "data_ptr") else "" for value in values])
    shape = kwargs.get("num_warps", 4), 1, 0
    stream = torch.cuda.current_stream().cuda_stream
    launcher.launch(
        x, y, z, stream, _function(kernel.__name__), False, False, None, None, shape, None, None, None, *values
    )  # fmt: skip


@functools.cache
def _function(name: str) -> int:
    """The driver's handle of a kernel of this name."""
    handle = ctypes.c_uint64()
    ctypes.PyDLL(None).cuModuleGetFunction(ctypes.byref(handle), ctypes.c_uint64(), name.encode())
    return handle.value
