"""Saves and restores the states of all random generators."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterable
from typing import Any

import torch


class RandomStates:
    """The generators' states now: of the CPU, of GPUs, of Python, of NumPy, and of those named."""

    def __init__(
        self, devices: Iterable[torch.device] | None = None, generators: Iterable[Any] = ()
    ) -> None:
        """Reads them; of the GPUs among `devices`, by default of the GPU in use.

        No GPU is waited for: the state of its generator is on the host.
        """
        if devices is None:
            devices = [torch.device("cuda")] if torch.cuda.is_initialized() else []
        self._torch = [
            (generator, generator.get_state())
            for generator in (
                torch.default_generator,
                *map(_generator, _gpus(devices)),
                *generators,
            )
        ]
        self._python: tuple[Any, ...] | None = random.getstate()
        self._numpy = _Numpy.now()
        self._outer: tuple[Any, ...] = ([], None, None)

    def has_drawn(self) -> bool:
        """Whether a generator of torch's has drawn since."""
        return any(not torch.equal(state, g.get_state()) for g, state in self._torch)

    def keep_if_drawn(self) -> None:
        """Forget those that have not changed since."""
        self._torch = [
            (generator, state)
            for generator, state in self._torch
            if not torch.equal(state, generator.get_state())
        ]
        if self._python == random.getstate():
            self._python = None
        if self._numpy is not None and not self._numpy.has_changed():
            self._numpy = None

    def restore(self) -> None:
        """Go back to the states that are kept."""
        self._outer = (
            [(generator, generator.get_state()) for generator, _ in self._torch],
            random.getstate() if self._python is not None else None,
            _Numpy.now() if self._numpy is not None else None,
        )
        self._set(self._torch, self._python, self._numpy)

    def put_back(self) -> None:
        """Undo `restore`, if it was called."""
        outer, self._outer = self._outer, ([], None, None)
        self._set(*outer)

    @staticmethod
    def _set(of_torch: list[Any], python: tuple[Any, ...] | None, numpy: _Numpy | None) -> None:
        for generator, state in of_torch:
            generator.set_state(state)
        if python is not None:
            random.setstate(python)
        if numpy is not None:
            numpy.set()


def _gpus(devices: Iterable[torch.device]) -> list[torch.device]:
    return [device for device in devices if device.type == "cuda"]


def _generator(gpu: torch.device) -> torch.Generator:
    index = torch.cuda.current_device() if gpu.index is None else gpu.index
    return torch.cuda.default_generators[index]


class _Numpy:
    """NumPy's global generator: asking it for its state takes longer than a small module's forward.

    So this reads its memory: the words of the Mersenne Twister and the position in them. In addition
    `get_state` has a cached second normal number; if there is none, none can appear
    without a step of the generator.
    """

    _known: _Numpy | None = None

    def __init__(self, words: bytes | None, state: dict[str, Any]) -> None:
        self.words, self.state = words, state

    @classmethod
    def now(cls) -> _Numpy | None:
        """Its state; None without NumPy."""
        numpy = sys.modules.get("numpy.random")
        if numpy is None:
            return None
        words, known = cls._words(), cls._known
        if known is None or words is None or words != known.words or known.state["has_gauss"]:
            known = cls._known = cls(words, numpy.get_state(legacy=False))
        return known

    @staticmethod
    def _words() -> bytes | None:
        """The generator's memory; None if it is another than NumPy's usual one."""
        generator = sys.modules["numpy.random"].mtrand._rand._bit_generator
        if type(generator).__name__ != "MT19937":
            return None
        return ctypes.string_at(generator.ctypes.state_address, 4 * 624 + 4)

    def has_changed(self) -> bool:
        """Since it was read."""
        if self.words is not None and not self.state["has_gauss"]:
            return self._words() != self.words
        return not _same(self.state, sys.modules["numpy.random"].get_state(legacy=False))

    def set(self) -> None:
        """Go back to it."""
        sys.modules["numpy.random"].set_state(self.state)


def _same(a: Any, b: Any) -> bool:
    """Of states in any nesting."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool((a == b).all()) if hasattr(a, "all") else a == b
