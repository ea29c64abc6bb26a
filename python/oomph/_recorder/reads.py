"""When operators last read each piece of memory: what nothing reads any more need not be there."""

from __future__ import annotations

from typing import Any

import torch

from oomph._recorder.progress import now
from oomph._virtual_gpu.device_memory import base_pointer

_GAP_US = 100
"""Reads that follow each other within this time are one span."""

_MOST_SPANS = 64
"""Spans of an address that are kept; older ones are joined, as if it had been read all the time between them."""

_AT_PLACES = ("aten::index_copy_", "aten::index_put_", "aten::scatter_")
"""Operators that write to some places of a tensor."""

_MOST_FILLED = 10_000
"""Addresses of memory that is written part by part."""


class Reads:
    """Sees the tensors that operators are given on a virtual GPU, and keeps nothing alive."""

    def __init__(self) -> None:
        """Nothing was read so far."""
        self._spans: dict[int, list[int]] = {}
        """By where the memory begins: the times in microseconds at which spans begin and end, in turn."""
        self._parts: dict[int, int] = {}
        """By where the memory begins: where a part of it begins that was written."""
        self._filled: dict[int, int] = {}
        """Where memory begins that is written part by part, and when that was seen last."""

    def __call__(self, t: torch.Tensor) -> None:
        """An operator is given `t`, which is on the GPU."""
        address, time = base_pointer(t), now()
        spans = self._spans.get(address)
        if spans is None:
            self._spans[address] = [time, time]
        elif time - spans[-1] <= _GAP_US:
            spans[-1] = time
        else:
            spans += (time, time)
            if len(spans) > 2 * _MOST_SPANS:
                del spans[1:3]

    def writes(self, name: str, t: torch.Tensor) -> None:
        """The operator `name` changes `t`, which is on the GPU: perhaps a part of a larger tensor, or places in it."""
        part = t.storage_offset()
        if part or name in _AT_PLACES:
            address = base_pointer(t)
            if address <= 0:
                return  # an empty part of memory that is not there yet
            first = self._parts.setdefault(address, part)
            if (first != part or not part) and len(self._filled) < _MOST_FILLED:
                self._filled[address] = now()

    def forget(self) -> None:
        """A part of the script begins."""
        for kept in (self._spans, self._parts, self._filled):
            kept.clear()

    def as_dict(self) -> dict[str, Any]:
        """The record's part of it."""
        return dict(
            reads=[[address, *spans] for address, spans in self._spans.items()],
            filled=list(self._filled.items()),
        )
