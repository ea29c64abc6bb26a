"""Autocast as it was, around what is computed again or later."""

from __future__ import annotations

import contextlib

import torch

_NOTHING = contextlib.nullcontext()


class Autocast:
    """Whether and in what type operators compute, as it was said when this was made."""

    def __init__(self, *devices: str) -> None:
        """What is said now for types of devices ("cuda", "cpu")."""
        self._then = [(device, _said(device)) for device in devices]
        self._caches = torch.is_autocast_cache_enabled()

    @property
    def dtype(self) -> torch.dtype | None:
        """What products on the first device are computed in; None where their arguments say it."""
        enabled, dtype = self._then[0][1]
        return dtype if enabled else None

    def again(self, caches: bool | None = None) -> contextlib.AbstractContextManager:
        """A context in which the same is said again.

        `caches`: whether casts of weights are kept until the outermost autocast ends, as they were if it is
        None. Without gradients none may be: a later forward pass would take them for its own.
        """
        if caches is None:
            caches = self._caches
        contexts = [
            torch.autocast(device, dtype=then[1], enabled=then[0], cache_enabled=caches)
            for device, then in self._then
            if then[0] or then != _said(device)
        ]
        if len(contexts) < 2:
            return contexts[0] if contexts else _NOTHING
        stack = contextlib.ExitStack()
        for context in contexts:
            stack.enter_context(context)
        return stack


def _said(device: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
