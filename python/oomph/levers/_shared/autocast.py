"""Restores autocast's state around recomputed or deferred code."""

from __future__ import annotations

import contextlib

import torch

_NOTHING = contextlib.nullcontext()


class Autocast:
    """Autocast's state at the time of creation."""

    def __init__(self, *devices: str) -> None:
        """The current state for device types ("cuda", "cpu")."""
        self._then = [(device, _said(device)) for device in devices]
        self._caches = torch.is_autocast_cache_enabled()

    @property
    def dtype(self) -> torch.dtype | None:
        """What products on the first device are computed in; None where their arguments say it."""
        enabled, dtype = self._then[0][1]
        return dtype if enabled else None

    def again(self, caches: bool | None = None) -> contextlib.AbstractContextManager:
        """A context with that state.

        `caches`: whether casts of weights are cached until the outermost autocast ends; None restores the saved setting.
        Without gradients they must not be: a later forward pass would reuse them.
        """
        if caches is None:
            caches = self._caches
        contexts = [
            _Said(device, then, caches)
            for device, then in self._then
            if then[0] or then != _said(device)
        ]
        if len(contexts) < 2:
            return contexts[0] if contexts else _NOTHING
        stack = contextlib.ExitStack()
        for context in contexts:
            stack.enter_context(context)
        return stack


class _Said:
    """`torch.autocast` without its checks, which take longer than a small operator."""

    def __init__(self, device: str, said: tuple[bool, torch.dtype], caches: bool) -> None:
        self._device, self._said, self._caches = device, said, caches

    def __enter__(self) -> None:
        self._before = _said(self._device), torch.is_autocast_cache_enabled()
        self._say(*self._said, self._caches)
        torch.autocast_increment_nesting()

    def __exit__(self, *error: object) -> None:
        # As there: the outermost one clears what was kept.
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        said, caches = self._before
        self._say(*said, caches)

    def _say(self, enabled: bool, dtype: torch.dtype, caches: bool) -> None:
        torch.set_autocast_enabled(self._device, enabled)
        torch.set_autocast_dtype(self._device, dtype)
        torch.set_autocast_cache_enabled(caches)


def _said(device: str) -> tuple[bool, torch.dtype]:
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
