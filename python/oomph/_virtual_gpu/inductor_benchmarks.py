"""Inductor's benchmarks of combined kernels, on a GPU whose kernels do nothing.

Inductor compiles each of some kernels, and one kernel that does the work of all, and keeps what was faster. They move the same
bytes, and one launch takes less than several: by the virtual clock it is always the combined kernel. So none of them is compiled for
the benchmark alone. Their inputs take the memory that they take on a GPU.
"""

from __future__ import annotations

import functools
from typing import Any


class _Launcher:
    """Stands for a compiled kernel: a launch does nothing, and no register is spilled."""

    n_spills = 0
    store_cubin = False

    def __init__(self, config: Any) -> None:
        self.config = config

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Launch it."""


def watch(scheduler: Any) -> None:
    """In Inductor's module `scheduler`: of a release that benchmarks otherwise, kernels are compiled as ever."""
    from torch._inductor.runtime import triton_heuristics

    kind, tuner = scheduler.Scheduler, triton_heuristics.CachingAutotuner
    decide = getattr(kind, "speedup_by_combo_kernel", None)
    if decide is None or not hasattr(tuner, "precompile"):
        return

    def launched_without_code(kernel: Any, *args: Any, **kwargs: Any) -> None:
        kernel.launchers = [_Launcher(kernel.configs[0])]

    @functools.wraps(decide)
    def decided(self: Any, *args: Any, **kwargs: Any) -> bool:
        compiled, tuner.precompile = tuner.precompile, launched_without_code
        try:
            return bool(decide(self, *args, **kwargs))
        finally:
            tuner.precompile = compiled

    kind.speedup_by_combo_kernel = decided
