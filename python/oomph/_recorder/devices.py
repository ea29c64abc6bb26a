"""What the GPUs held of a run that has ended."""

from __future__ import annotations

from typing import Any

import torch

from oomph._virtual_gpu.library import Usage


def describe(index: int, usage: Usage | None) -> dict[str, Any]:
    """The record's entry of device `index`; `usage` is a virtual GPU's state, None on a real one.

    All sizes are in bytes; `outside` is what others than PyTorch's allocator took.
    """
    stats = torch.cuda.memory_stats(index)
    result = dict(
        index=index,
        name=torch.cuda.get_device_name(index),
        total_bytes=torch.cuda.get_device_properties(index).total_memory,
        peak_allocated_bytes=stats.get("allocated_bytes.all.peak", 0),
        peak_reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
        allocated_bytes=stats.get("allocated_bytes.all.current", 0),
        reserved_bytes=stats.get("reserved_bytes.all.current", 0),
        retries=stats.get("num_alloc_retries", 0),
        used=bool(stats.get("allocation.all.allocated", 0)),
    )
    if usage is not None:
        result.update(
            used=result["used"] or usage.peak > usage.context,
            total_bytes=usage.total,
            limit_bytes=usage.limit,
            outside_bytes=usage.context,
            peak_used_bytes=usage.peak,
        )
    elif result["used"]:
        free, total = torch.cuda.mem_get_info(index)
        outside = max(0, total - free - result["reserved_bytes"])
        result.update(
            total_bytes=total,
            limit_bytes=total,
            outside_bytes=outside,
            peak_used_bytes=result["peak_reserved_bytes"] + outside,
        )
    return result
