"""Keeps what runs inside out of `torch.jit.trace`."""

from __future__ import annotations

from typing import Any

import torch


class untraced:  # noqa: N801  (a context, as those of `contextlib`)
    """While PyTorch traces, operators become part of the trace, and sizes are tensors: inside they are not."""

    def __enter__(self) -> None:
        """Stop tracing in this thread."""
        self._state = torch._C._get_tracing_state()
        if self._state is not None:
            torch._C._set_tracing_state(None)

    def __exit__(self, *exception: Any) -> None:
        """Go on."""
        if self._state is not None:
            torch._C._set_tracing_state(self._state)
