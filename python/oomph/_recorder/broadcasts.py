"""A column that meets a row: `(n, 1)` with `(n,)` gives `(n, n)`, which is seldom meant."""

from __future__ import annotations

from typing import Any

import torch

from oomph._user_code import user_line
from oomph._virtual_gpu.device_memory import base_pointer

LARGE = 1 << 20
"""Elements from which on a result is noted."""

_MOST = 8
"""Sizes that are noted."""


class Broadcasts:
    """Sees the two tensors of operators that compute element by element, on a virtual GPU."""

    def __init__(self) -> None:
        """None was seen so far."""
        self._lines: dict[int, str] = {}
        """By the length of both the line where they meet."""

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        """An operator is given `a` and `b`."""
        n = _column_and_row(a, b) or _column_and_row(b, a)
        if n * n >= LARGE and n not in self._lines and len(self._lines) < _MOST:
            self._lines[n] = user_line()

    def forget(self) -> None:
        """A part of the script begins."""
        self._lines.clear()

    def as_dict(self) -> dict[str, Any]:
        """The record's part of it."""
        return dict(broadcasts=list(self._lines.items()))


def _column_and_row(a: torch.Tensor, b: torch.Tensor) -> int:
    """The length of both, if `a` is a column and `b` a row of as many other elements; else 0."""
    if a.dim() != 2:
        return 0
    if b.dim() == 2 and a.shape == b.shape:
        # Losses broadcast both first, and then strides of zero tell.
        meet = a.stride(1) == b.stride(0) == 0 and a.stride(0) * b.stride(1) != 0
    else:
        meet = b.dim() == 1 and a.size(1) == 1 and a.size(0) == b.size(0)
    return a.size(0) if meet and base_pointer(a) != base_pointer(b) else 0
