"""Values of captured CUDA graphs: each replay computes the operators that were captured and can be known, over the same addresses.

While a graph is captured its kernels do not run, on a GPU neither, so nothing is computed then.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from oomph._virtual_gpu.device_memory import base_pointer

_CPU = torch.device("cpu")
_make_storage = torch._C._construct_storage_from_data_pointer
Step = Callable[[], None]
Counts = dict[torch.Generator, int]


def alias(value: Any) -> Any:
    """Tensors of the GPU, also in lists, as tensors of the CPU over the same bytes of the same storage, which they do not keep alive."""
    if isinstance(value, (list, tuple)):
        return type(value)(alias(item) for item in value)
    if not isinstance(value, torch.Tensor) or not value.is_cuda:
        return value
    storage = _make_storage(base_pointer(value), _CPU, value.untyped_storage().nbytes())
    made = torch.empty(0, dtype=value.dtype, device=_CPU)
    return made.set_(storage, value.storage_offset(), value.shape, value.stride())


class _Loss:
    """A step that loses what is in storages: those of one operator after another, so each once."""

    def __init__(self, lose_storage: Callable[[int], None]) -> None:
        self.places: set[int] = set()
        self._lose_storage = lose_storage

    def __call__(self) -> None:
        for place in self.places:
            self._lose_storage(place)


class Graphs:
    """What was captured, graph by graph."""

    def __init__(self, lose_storage: Callable[[int], None]) -> None:
        """Watch `torch.cuda.CUDAGraph`; `lose_storage` is told, in replays, where what nobody computes was written."""
        self._lose_storage = lose_storage
        self.computed: set[int] = set()
        """Storages whose values the replays of the running capture compute."""
        self._steps: weakref.WeakKeyDictionary[Any, list[Step]] = weakref.WeakKeyDictionary()
        self._captured: list[Step] | None = None
        self._draws: weakref.WeakKeyDictionary[Any, Counts] = weakref.WeakKeyDictionary()
        # By generator: numbers that a thread of the running capture has drawn, and where the running replay began.
        self._drawn: Counts = {}
        self._began: Counts = {}
        graph = torch.cuda.CUDAGraph
        begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

        @functools.wraps(begin)
        def capture_begin(this: Any, *args: Any, **kwargs: Any) -> None:
            begin(this, *args, **kwargs)
            self._captured = self._steps[this] = []
            self._drawn = {}
            self.computed = set()

        @functools.wraps(end)
        def capture_end(this: Any) -> None:
            self._captured = None
            self._draws[this] = self._drawn
            end(this)

        @functools.wraps(replay)
        def replay_values(this: Any) -> None:
            draws = self._draws.get(this, {})
            before = {generator: generator.get_offset() for generator in draws}
            replay(this)
            # One that moved by another number had other states while it was captured.
            self._began = {
                generator: before[generator]
                for generator, count in draws.items()
                if generator.get_offset() == before[generator] + count
            }
            if steps := self._steps.get(this):
                with _CPU:  # whatever device the program has new tensors on
                    for step in steps:
                        step()

        graph.capture_begin, graph.capture_end, graph.replay = (  # type: ignore[method-assign]
            capture_begin,
            capture_end,
            replay_values,
        )

    def capturing(self) -> bool:
        """Whether a graph is being captured."""
        return self._captured is not None

    def add(self, step: Step) -> None:
        """Do `step` in each replay of what is being captured."""
        if self._captured is not None:
            self._captured.append(step)

    def lose(self, places: set[int]) -> None:
        """In each replay, the storages that begin at `places` are overwritten by what nobody computes."""
        if self._captured is None:
            return
        last = self._captured[-1] if self._captured else None
        if not isinstance(last, _Loss):
            last = _Loss(self._lose_storage)
            self._captured.append(last)
        last.places |= places

    def draw(self, generator: torch.Generator, numbers: int) -> Callable[[], int | None]:
        """A thread draws so many numbers: gives the generator's offset after it in the running replay, None if nobody knows it."""
        self._drawn[generator] = until = self._drawn.get(generator, 0) + numbers

        def offset() -> int | None:
            began = self._began.get(generator)
            return None if began is None else began + until

        return offset
