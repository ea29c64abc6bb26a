"""The memory history: PyTorch's own, or that of the virtual GPU's pools where PyTorch keeps none."""

from __future__ import annotations

import itertools
import sys
import types
from time import time_ns
from typing import Any, NamedTuple

import torch

from oomph._recorder import segments
from oomph._virtual_gpu import library

_ACTIONS = ("alloc", "free_completed", "segment_map", "segment_unmap", "oom")
"""What PyTorch calls the kinds of `PoolEvent`, in their order."""


def uses_pools() -> bool:
    """Whether PyTorch allocates from the driver's pools (`backend:cudaMallocAsync`), and keeps no history."""
    return torch.cuda.get_allocator_backend() == "cudaMallocAsync"


def begin(most: int, in_stacks: bool) -> None:
    """Keep a history of up to `most` events; CUDA is in use."""
    if uses_pools() and library.is_loaded():
        library.library().oomph_vgpu_watch_pools()
        return
    torch.cuda.memory._record_memory_history(
        enabled="all",
        context="all" if in_stacks else "alloc",
        stacks="python",
        max_entries=most,
    )


def keep_newest(most: int, context: str | None) -> None:
    """Keep the newest `most` events, with stacks where `context` is "alloc", without where it is None."""
    torch.cuda.memory._record_memory_history(
        enabled="all", context=context, stacks="python", max_entries=most
    )


def end() -> None:
    """Keep no history, and forget what there is; blocks that are alive keep their stacks."""
    torch.cuda.memory._record_memory_history(enabled=None)


def snapshot() -> Any:
    """The history so far, in the form of `torch.cuda.memory._snapshot()`."""
    return _of_pools() if uses_pools() else _of_pytorch()


class Alive(NamedTuple):
    """A block that is alive: the event of its allocation, in a history that begins now and lacks it."""

    device: int
    address: int
    bytes: int
    event: dict[str, Any]

    @property
    def key(self) -> tuple[int, int, int]:
        """What tells it from others that are alive, then or a little later."""
        return self[:3]


def alive() -> list[Alive]:
    """What is alive now, of PyTorch's own history."""
    # `memory_allocated` would flatten all statistics.
    stats = map(torch.cuda.memory_stats_as_nested_dict, range(torch.cuda.device_count()))
    if uses_pools() or not any(one["allocated_bytes"]["all"]["current"] for one in stats if one):
        return []
    time = time_ns() // 1000
    return [
        Alive(
            segment["device"], block["address"], block["size"],
            dict(
                action="alloc", addr=block["address"], size=block["requested_size"], frames=block["frames"],
                stream=segment["stream"], device=segment["device"], time_us=time,
            ),
        )
        for segment in _of_pytorch()["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]  # fmt: skip


def without_labels(made: Any) -> Any:
    """A snapshot of a time in which allocations were not labelled: the labels that are there are old."""
    for event in itertools.chain(*made["device_traces"]):
        event.pop("user_metadata", None)
    return made


def _of_pools() -> Any:
    """Of the default pool: one segment that grows and shrinks."""
    trace, blocks, units = [], {}, set()
    for event in library.pool_events():
        action, address, size = _ACTIONS[event.kind], event.address, event.size
        row = dict(
            action=action, addr=address, size=size, stream=0, device=0, frames=[],
            time_us=event.nanoseconds // 1000,
        )  # fmt: skip
        if event.scope >= 0:
            row["user_metadata"] = str(event.scope)
        if action == "alloc":
            blocks[address] = dict(
                address=address, size=size, requested_size=size, state="active_allocated", frames=[]
            )
        elif action == "free_completed":
            blocks.pop(address, None)
            trace.append(dict(row, action="free_requested"))
        elif action == "segment_map":
            units.add((address, size))
        elif action == "segment_unmap":
            units.discard((address, size))
        trace.append(row)
    return dict(
        segments=_segments(sorted(units), [blocks[address] for address in sorted(blocks)]),
        device_traces=[trace] + [[] for _ in range(1, torch.cuda.device_count())],
        allocator_settings=dict(expandable_segments=True),
    )


def _segments(units: list[tuple[int, int]], blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring units together, with their blocks and what is free between them."""
    found: list[dict[str, Any]] = []
    for address, size in units:
        if found and found[-1]["address"] + found[-1]["total_size"] == address:
            found[-1]["total_size"] += size
        else:
            found.append(segments.segment(0, address, size, expandable=True))
    return segments.filled(found, blocks)


def _of_pytorch() -> Any:
    """Without the second that it takes to import `torch._inductor`.

    PyTorch looks there for the lines of compiled code, and would import it to see that there is none.
    """
    if "torch._inductor" in sys.modules:
        return torch.cuda.memory._snapshot()
    nothing = types.SimpleNamespace()
    torch._inductor = nothing
    try:
        return torch.cuda.memory._snapshot()
    finally:
        if torch.__dict__.get("_inductor") is nothing:
            del torch._inductor
