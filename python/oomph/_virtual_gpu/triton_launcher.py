"""Launches Triton's kernels on the virtual GPU without a launcher in C.

Triton writes one for each signature of a kernel and has a C compiler build it, a third of a second each. It checks the arguments
and packs them for the kernel, which does nothing here. The kernel itself is compiled as ever: what it needs of the GPU is checked.
"""

from __future__ import annotations

import ctypes
from typing import Any

_CALL = "iiiKKppOOOOOO"
"""What Triton's launchers are called with before the kernel's own arguments, as it names that: grid, stream, function, two flags of
the launch, two scratch buffers, (warps, blocks of a cluster, shared memory), and what the hooks around a launch get."""
_DEVICE_POINTER = 3
_INVALID_VALUE = 1


class Launcher:
    """Stands for the module that Triton builds for one signature."""

    def __init__(self, kinds: list[str]) -> None:
        self._pointers = [at for at, kind in enumerate(kinds) if kind.startswith("*")]
        self._gpu = ctypes.PyDLL(None)

    def launch(
        self, x: int, y: int, z: int, stream: int, function: int, cooperative: bool, overlaps: bool,
        scratch: Any, profile_scratch: Any, shape: tuple[int, int, int], metadata: Any, enter: Any, leave: Any, *args: Any,
    ) -> None:  # fmt: skip
        """Raise `ValueError` for a tensor whose memory no GPU can reach, `TypeError` for what is no tensor."""
        warps, blocks, shared = shape
        if enter is not None:
            enter(metadata)
        for at in self._pointers:
            self._check(at, args[at])
        if x * y * z > 0:
            u32, u64 = ctypes.c_uint32, ctypes.c_uint64
            self._gpu.cuLaunchKernel(
                u64(function), u32(x * blocks), u32(y), u32(z), u32(32 * warps), u32(1), u32(1), u32(shared), u64(stream), None, None,
            )  # fmt: skip
        if leave is not None:
            leave(metadata)

    def _check(self, at: int, given: Any) -> None:
        if given is None or isinstance(given, int):
            return
        if not hasattr(given, "data_ptr"):
            raise TypeError("Pointer argument must be either uint64 or have data_ptr method")
        address, found = given.data_ptr(), ctypes.c_uint64()
        if not address:
            return
        status = self._gpu.cuPointerGetAttribute(
            ctypes.byref(found), _DEVICE_POINTER, ctypes.c_uint64(address)
        )
        if status == _INVALID_VALUE:
            raise ValueError(
                f"Pointer argument (at {at}) cannot be accessed from Triton (cpu tensor?)"
            )


def watch(driver: Any) -> None:
    """In Triton's `driver` of NVIDIA's GPUs: of a release that calls launchers otherwise, and for a signature with descriptors or
    tuples, a launcher is built as ever."""
    if getattr(driver, "_BASE_ARGS_FORMAT", None) != _CALL:
        return
    make, build = driver.make_launcher, driver.compile_module_from_src

    def make_launcher(constants: Any, signature: dict[Any, Any], *rest: Any) -> Any:
        kinds = list(signature.values())
        if all(isinstance(kind, str) and not kind.startswith(_BUILT) for kind in kinds):
            return Launcher(kinds)
        return make(constants, signature, *rest)

    def compile_module_from_src(src: Any, *args: Any, **kwargs: Any) -> Any:
        return src if isinstance(src, Launcher) else build(src, *args, **kwargs)

    driver.make_launcher, driver.compile_module_from_src = make_launcher, compile_module_from_src


_BUILT = ("tensordesc", "nvTmaDesc")
