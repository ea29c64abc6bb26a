"""What a snapshot says of an allocator at its end: memory from the driver, with the blocks in it and what is free between them."""

from __future__ import annotations

from typing import Any


def filled(segments: list[dict[str, Any]], blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`segments` with those of `blocks` that lie in them; both by address."""
    waiting = iter(blocks)
    block = next(waiting, None)
    for segment in segments:
        segment["blocks"] = []
        at, end = segment["address"], segment["address"] + segment["total_size"]
        used = 0
        while block is not None and block["address"] < end:
            if block["address"] > at:
                segment["blocks"].append(_free(at, block["address"]))
            segment["blocks"].append(block)
            at, used = block["address"] + block["size"], used + block["size"]
            block = next(waiting, None)
        if at < end:
            segment["blocks"].append(_free(at, end))
        segment.update(allocated_size=used, active_size=used, requested_size=used)
    return segments


def segment(device: int, address: int, size: int, expandable: bool) -> dict[str, Any]:
    """Memory that the driver gave."""
    return dict(
        device=device, address=address, total_size=size, stream=0, segment_type="large", segment_pool_id=(0, 0),
        is_expandable=expandable, frames=[], blocks=[],
    )  # fmt: skip


def _free(start: int, end: int) -> dict[str, Any]:
    return dict(address=start, size=end - start, requested_size=0, state="inactive", frames=[])
