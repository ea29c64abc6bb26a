"""Records what a script that compiles kernels with Numba, and uses no other framework, does with the memory of a virtual GPU.

Numba has no pool: each array is memory from the driver, which gets it back some time after the array is gone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import sys
from typing import Any

from oomph._import_hooks import on_import
from oomph._recorder.traced_recorder import TracedRecorder

VALUES = (
    "Numba's kernels do not run: arrays read as what was copied to them, and otherwise as zeros"
)

NEWEST = 13
"""The release of CUDA that a new installation gets."""


def installed_bindings() -> int | None:
    """The release of CUDA whose bindings Numba would call; None if it calls the driver by itself."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return int(importlib.metadata.version("cuda-bindings").partition(".")[0])
    return None


class NumbaRecorder(TracedRecorder):
    """Numba: its arrays, by source line."""

    label = "Numba"
    assumed = (("values", VALUES),)

    def start(self) -> None:
        """Install all hooks; Numba's part for CUDA is about to be imported."""
        on_import("numba.cuda.cudadrv.driver", self._watch_arrays)

    def _watch_arrays(self, driver: Any) -> None:
        manager, pending = driver.NumbaCUDAMemoryManager, driver._PendingDeallocs
        allocate, add = manager.memalloc, pending.add_item

        @functools.wraps(allocate)
        def memalloc(manager: Any, size: int) -> Any:
            try:
                made = allocate(manager, size)
            except Exception as error:
                if self.is_full(error):
                    # A script may catch it.
                    self.runs_out(error, size)
                raise
            device, address = manager.context.device.id, _address(made.device_pointer)
            self.chunk(device, address, size)
            self.block(device, address, size, size)
            return made

        @functools.wraps(add)
        def add_item(deallocations: Any, free: Any, place: Any, *rest: Any) -> None:
            address = _address(place)
            device = next((of for of, at in self._blocks if at == address), None)
            if device is None:
                return add(deallocations, free, place, *rest)
            self.block_ends(device, address)

            def freed(place: Any) -> None:
                free(place)
                self.chunk_ends(device, address)

            return add(deallocations, freed, place, *rest)

        manager.memalloc, pending.add_item = memalloc, add_item

    def needs(self) -> tuple[str, str, int] | None:
        """The package, its extra with NVIDIA's libraries, and the release of CUDA that they are of."""
        major = installed_bindings() or NEWEST  # Numba alone brings no package of NVIDIA's
        return "numba-cuda", f"cu{major}", major

    def is_full(self, error: BaseException) -> bool:
        """Whether `error` is Numba's, and says that memory ran out."""
        return type(error).__name__ == "CudaAPIError" and "OUT_OF_MEMORY" in str(error)

    def names(self) -> list[str]:
        """What each GPU is called."""
        with contextlib.suppress(Exception):
            named = [device.name for device in sys.modules["numba.cuda"].list_devices()]
            return [name.decode() if isinstance(name, bytes) else name for name in named]
        return []

    def devices(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What each GPU held, in bytes, and which Numba it is."""
        version = getattr(sys.modules.get("numba"), "__version__", "unknown")
        return self.held(), dict(
            name="numba", version=version, cuda=str(installed_bindings() or ""), allocator="driver", preallocates=False, limit_bytes=0,
        )  # fmt: skip


def _address(place: Any) -> int:
    """Of an integer, of one of ctypes, or of CUDA's bindings."""
    return int(getattr(place, "value", place) or 0)
