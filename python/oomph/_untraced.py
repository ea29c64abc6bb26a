"""Keeps what runs inside out of `torch.jit.trace`."""

from __future__ import annotations

from typing import Any

import torch

_set: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]


class untraced:
    """While PyTorch traces, operators become part of the trace, and sizes are tensors: inside they are not."""

    def __enter__(self) -> None:
        """Stop tracing in this thread."""
        self._state = torch._C._get_tracing_state()
        if self._state is not None:
            _set(None)

    def __exit__(self, *exception: Any) -> None:
        """Go on."""
        if self._state is not None:
            _set(self._state)
