"""The C interface of the virtual GPU (`crates/oomph-vgpu`), which is preloaded into this process."""

from __future__ import annotations

import ctypes
import functools
import json
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

INTERFACE = 6
"""The version of the interface below (`oomph_vgpu_interface` in `report.rs`)."""

BUSY = "oomph_vgpu_busy"
"""Counters that only grow: nanoseconds of work, the same with 32-bit values in 16 bits, launches."""


class Usage(ctypes.Structure):
    """The state of a device, in bytes."""

    _fields_ = [(name, c_uint64) for name in ("total", "limit", "allocated", "context", "peak")]


class PoolEvent(ctypes.Structure):
    """What happened to a stream-ordered pool (`PoolEvent` in `pools.rs`)."""

    _fields_ = [
        ("kind", c_uint64),
        ("address", c_uint64),
        ("size", c_uint64),
        ("scope", c_int64),
        ("nanoseconds", c_uint64),
    ]


# What each function gives, and what it takes.
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "oomph_vgpu_interface": (c_int, []),
    "oomph_vgpu_is_forked": (c_int, []),
    "oomph_vgpu_usage": (c_int, [c_int, POINTER(Usage)]),
    "oomph_vgpu_fail": (c_int, [c_int, c_uint64, c_uint64]),
    "oomph_vgpu_requests": (c_uint64, [c_int]),
    "oomph_vgpu_horizon": (c_uint64, [c_int]),
    "oomph_vgpu_clear": (None, [c_uint64, c_uint64]),
    "oomph_vgpu_bring": (c_int, [c_uint64, c_uint64, c_uint64]),
    "oomph_vgpu_place": (None, [c_uint32]),
    "oomph_vgpu_step": (None, [c_uint64, c_uint64, c_uint64]),
    "oomph_vgpu_forget_steps": (None, []),
    "oomph_vgpu_skip": (None, [c_uint64, c_uint64]),
    "oomph_vgpu_work": (c_size_t, [c_char_p, c_size_t]),
    "oomph_vgpu_report": (c_size_t, [c_char_p, c_size_t]),
    "oomph_vgpu_begin": (None, [c_int, c_int]),
    "oomph_vgpu_answer": (None, [c_int64]),
    "oomph_vgpu_end": (c_int, []),
    "oomph_vgpu_watch_pools": (None, []),
    "oomph_vgpu_scope": (None, [c_int64]),
    "oomph_vgpu_pool_events": (c_size_t, [POINTER(PoolEvent), c_size_t]),
    "oomph_vgpu_offer": (None, [c_int]),
    "oomph_vgpu_taken": (c_int, []),
    "oomph_vgpu_hold": (None, [c_int]),
    "oomph_vgpu_look": (None, []),
    "oomph_vgpu_arrival": (c_int, [POINTER(c_uint64)]),
    "oomph_vgpu_expect": (None, [c_int]),
    "oomph_vgpu_join": (None, [c_int]),
    "oomph_vgpu_leave": (None, [c_int, c_char_p]),
    "oomph_vgpu_flash_mask": (
        c_int,
        [c_uint64, c_uint64, c_size_t, c_size_t, c_size_t, c_uint8, c_void_p],
    ),
    "oomph_vgpu_random": (
        c_int,
        [c_int, c_uint64, c_uint64, c_size_t, c_size_t, c_uint64, c_void_p, c_size_t],
    ),
}


class Unusable(RuntimeError):
    """There is no virtual GPU in this process, or its interface has another version."""


def is_loaded() -> bool:
    """Whether a virtual GPU stands in for CUDA in this process."""
    return hasattr(ctypes.PyDLL(None), "oomph_vgpu_interface")


@functools.cache
def library() -> Any:
    """The functions of `SIGNATURES`. Raise `Unusable`."""
    found = ctypes.PyDLL(None)
    if not hasattr(found, "oomph_vgpu_interface"):
        raise Unusable(
            "no virtual GPU is loaded into this process: the environment that `oomph run` made for it "
            "has lost LD_PRELOAD."
        )
    version = found.oomph_vgpu_interface()
    if version != INTERFACE:
        raise Unusable(
            f"the virtual GPU speaks version {version} of its interface, and this Python package "
            f"version {INTERFACE}: they belong to two versions of oomph. Install oomph again."
        )
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def is_forked() -> bool:
    """Whether this process was forked after a virtual GPU was in use, so that it cannot use it."""
    return is_loaded() and bool(ctypes.PyDLL(None).oomph_vgpu_is_forked())


@functools.cache
def busy() -> Any:
    """The counters `BUSY`, as they stand whenever they are read."""
    return (c_uint64 * 3).in_dll(library(), BUSY)


def launches() -> int:
    """How many kernels were launched."""
    return int(busy()[2])


def strange() -> Any:
    """A counter of kernels that neither PyTorch nor an operator launched, as it stands whenever it is read."""
    return c_uint64.in_dll(library(), "oomph_vgpu_strange")


def usage(index: int) -> Usage | None:
    """The state of device `index`, None if there is no such device."""
    found = Usage()
    return None if library().oomph_vgpu_usage(index, ctypes.byref(found)) else found


def pool_events() -> Any:
    """All that happened to the default pools since they are watched: an array of `PoolEvent`."""
    read = library().oomph_vgpu_pool_events
    count = read(None, 0)
    events = (PoolEvent * count)()
    read(events, count)
    return events


def report() -> dict[str, Any]:
    """What the virtual GPU counted and assumed (`report.rs`)."""
    return _read(library().oomph_vgpu_report)


def work() -> dict[str, Any]:
    """What the newest steps did (`work.rs`)."""
    return _read(library().oomph_vgpu_work)


def _read(write: Any) -> dict[str, Any]:
    # Other threads (PyTorch's watchdog of collectives) may go on meanwhile, and the report with them.
    room, length = 0, write(None, 0)
    while length > room:
        room = length
        buffer = ctypes.create_string_buffer(room)
        length = write(buffer, room)
    return json.loads(buffer.raw[:length])
