"""Saves and restores the states of all random generators."""

from __future__ import annotations

import ctypes
import random
import struct
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
        self._python = _Python.now()
        self._numpy = _Numpy.now()
        self._outer: tuple[Any, ...] = ([], None, None)

    def has_drawn(self) -> bool:
        """Whether one of them has drawn since."""
        others = (self._python, self._numpy)
        return any(not _equal(state, g.get_state()) for g, state in self._torch) or any(
            other is not None and other.has_changed() for other in others
        )

    def keep_if_drawn(self) -> None:
        """Forget those that have not changed since."""
        self._torch = [
            (generator, state)
            for generator, state in self._torch
            if not _equal(state, generator.get_state())
        ]
        if self._python is not None and not self._python.has_changed():
            self._python = None
        if self._numpy is not None and not self._numpy.has_changed():
            self._numpy = None

    def restore(self) -> None:
        """Go back to the states that are kept."""
        self._outer = (
            [(generator, generator.get_state()) for generator, _ in self._torch],
            _Python.now() if self._python is not None else None,
            _Numpy.now() if self._numpy is not None else None,
        )
        self._set(self._torch, self._python, self._numpy)

    def put_back(self) -> None:
        """Undo `restore`, if it was called."""
        outer, self._outer = self._outer, ([], None, None)
        self._set(*outer)

    @staticmethod
    def _set(of_torch: list[Any], *others: _Twister | None) -> None:
        for generator, state in of_torch:
            generator.set_state(state)
        for other in others:
            if other is not None:
                other.set()


def _gpus(devices: Iterable[torch.device]) -> list[torch.device]:
    return [device for device in devices if device.type == "cuda"]


def _generator(gpu: torch.device) -> torch.Generator:
    index = torch.cuda.current_device() if gpu.index is None else gpu.index
    return torch.cuda.default_generators[index]


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two states are the same; `torch.equal` takes ten times as long."""
    if a.numel() != b.numel():
        return False
    return ctypes.string_at(a.data_ptr(), a.numel()) == ctypes.string_at(b.data_ptr(), b.numel())


class _Twister:
    """A global Mersenne Twister: asking it for its state takes longer than a small module's forward.

    So this reads its memory: the words and the position in them. In addition the state has a cached second
    normal number; if there is none, none can appear without a step of the generator.
    """

    _known: Any = None

    def __init__(self, words: bytes | None, state: Any) -> None:
        self.words, self.state = words, state

    @classmethod
    def now(cls) -> Any:
        """Its state; None if the program has no such generator."""
        if not cls._exists():
            return None
        words, known = cls._words(), cls._known
        if known is None or words is None or words != known.words or known._has_normal():
            known = cls._known = cls(words, cls._ask())
        return known

    def has_changed(self) -> bool:
        """Since it was read."""
        if self.words is not None and not self._has_normal():
            return self._words() != self.words
        return not _same(self.state, self._ask())

    def set(self) -> None:
        """Go back to it."""
        raise NotImplementedError

    @classmethod
    def _exists(cls) -> bool:
        return True

    @classmethod
    def _words(cls) -> bytes | None:
        """The generator's memory; None if it is not laid out as expected."""
        raise NotImplementedError

    @classmethod
    def _ask(cls) -> Any:
        raise NotImplementedError

    def _has_normal(self) -> bool:
        raise NotImplementedError


class _Numpy(_Twister):
    """NumPy's."""

    @classmethod
    def _exists(cls) -> bool:
        return "numpy.random" in sys.modules

    @classmethod
    def _words(cls) -> bytes | None:
        generator = sys.modules["numpy.random"].mtrand._rand._bit_generator
        if type(generator).__name__ != "MT19937":
            return None
        return ctypes.string_at(generator.ctypes.state_address, 4 * 624 + 4)

    @classmethod
    def _ask(cls) -> Any:
        return sys.modules["numpy.random"].get_state(legacy=False)

    def _has_normal(self) -> bool:
        return bool(self.state["has_gauss"])

    def set(self) -> None:
        sys.modules["numpy.random"].set_state(self.state)


class _Python(_Twister):
    """Python's."""

    _generator = getattr(random.getstate, "__self__", None)
    _is_known: bool | None = None
    """Whether its memory is where it has always been in CPython."""

    @classmethod
    def _words(cls) -> bytes | None:
        if cls._is_known is None:
            is_usual = type(cls._generator) is random.Random
            cls._is_known = is_usual and sys.implementation.name == "cpython"
            if cls._is_known:
                words, position = struct.Struct("i624I").unpack(cls._memory()), cls._ask()[1]
                cls._is_known = (*words[1:], words[0]) == position
        return cls._memory() if cls._is_known else None

    @classmethod
    def _memory(cls) -> bytes:
        return ctypes.string_at(id(cls._generator) + object.__basicsize__, 4 + 4 * 624)

    @classmethod
    def _ask(cls) -> Any:
        return random.getstate()

    def _has_normal(self) -> bool:
        return self.state[2] is not None

    def set(self) -> None:
        random.setstate(self.state)


def _same(a: Any, b: Any) -> bool:
    """Of states in any nesting."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool((a == b).all()) if hasattr(a, "all") else a == b
