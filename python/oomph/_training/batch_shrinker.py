"""The callbacks' reaction to an out-of-memory error: smaller micro-batches, then levers."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

from oomph._training.coupled_samples import coupled_layers
from oomph._training.errors import CannotFit, Refused, is_out_of_memory
from oomph._training.ladder import Ladder, Rung
from oomph._training.memory_model import GpuMemory
from oomph._training.optimizer_guard import OptimizerGuard, first_line
from oomph._training.release import clear_error, release_caches
from oomph._training.size_limit import GROW_AFTER, SizeLimit
from oomph.levers._shared.base import CannotApply

log = logging.getLogger("oomph")


class BatchShrinker:
    """How many samples of a batch go through a model at once."""

    def __init__(
        self,
        rungs: Ladder | Sequence[Rung] | None,
        coupled: str,
        option: str,
        grow_after: int = GROW_AFTER,
    ) -> None:
        """`option`: the user's setting for the batch size, for messages."""
        if coupled not in ("refuse", "warn"):
            raise ValueError(f'coupled: expected "refuse" or "warn"; found {coupled!r}')
        self.ladder = Ladder.of(rungs)
        self.phase = "forward"
        """forward or backward, as the callback says."""
        self.errors: list[str] = []
        """The first lines of the errors that were survived."""
        self._coupled, self._option, self._grow_after = coupled, option, grow_after
        self._capacity = 0.0

    def bind(self, model: nn.Module, gpu_memory: GpuMemory) -> None:
        """Use this model."""
        self._model, self._gpu_memory = model, gpu_memory
        self._guards: dict[int, OptimizerGuard] = {}
        self._limit = SizeLimit(gpu_memory, self._grow_after)
        self.ladder.bind(model, gpu_memory, self._guards)

    def guard(self, optimizer: Any, protect: str) -> OptimizerGuard:
        """The guard that makes an optimizer's step atomic."""
        guard = self._guards.get(id(optimizer))
        if guard is None:
            guard = self._guards[id(optimizer)] = OptimizerGuard(
                optimizer, self._gpu_memory, protect
            )
            guard.rescue = self.ladder.rescue
        return guard

    def begin(self) -> None:
        """A step begins: nothing of it is allocated."""
        if not self._gpu_memory.measures:
            return
        coming = sum(guard.coming() for guard in self._guards.values())
        self._capacity = self._gpu_memory.usable() - self._gpu_memory.allocated() - coming
        self._limit.allowed(self._capacity)

    def parts(self, size: int) -> int:
        """How many parts to split a batch of `size` samples into."""
        return -(-size // int(min(self._limit.units, size)))

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Around each forward pass of a part with its loss."""
        self.phase = "forward"
        with self.ladder.forward_pass():
            yield
        self.phase = "backward"

    def until_it_fits(
        self, attempt: Callable[[], Any], undo: Callable[[], None], size: Callable[[], int]
    ) -> Any:
        """The result of `attempt`, repeated after `undo` until memory suffices.

        `size()` is that of the batch, known after an attempt at the latest.
        """
        again = True
        while True:
            smallest = self._limit.units == 1 or not self.may_split()
            retries = self._gpu_memory.retries()
            result, failure = self._try(attempt, smallest and not again)
            if not failure:
                flushed = self._gpu_memory.retries() > retries and self.may_split()
                self._succeeded(size(), flushed)
                return result
            undo()
            release_caches()
            if failure == _REFUSED:
                continue
            self.errors.append(failure)
            smallest = smallest or min(self._limit.units, size()) == 1
            if smallest and again:
                # The error may have been transient; this time, measure what is missing.
                again = False
            else:
                again = again and not smallest
                self._shrink(size(), failure)

    def _succeeded(self, size: int, flushed: bool) -> None:
        self._limit.quiet(self.parts(size), lambda n: -(-size // n), self._capacity, flushed)

    def _try(self, attempt: Callable[[], Any], measured: bool) -> tuple[Any, str]:
        try:
            with self.ladder.measuring(measured):
                return attempt(), ""
        except CannotApply as refusal:
            self.ladder.refused(refusal)
            return None, _REFUSED
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = first_line(error)
            clear_error(error)
            return None, failure

    def may_split(self) -> bool:
        """Whether parts of a batch add up to the whole."""
        return self._coupled == "warn" or not coupled_layers(self._model)

    def _shrink(self, size: int, failure: str) -> None:
        now = int(min(self._limit.units, size))
        if now > 1 and self.may_split():
            self._limit.set(int(self._limit.failed(now, self._capacity)))
            log.warning(
                "out of memory: repeating the step, %d samples at a time", self._limit.units
            )
            return
        pulled = self.ladder.pull(self.phase, failure, now)
        if pulled:
            log.warning(
                "out of memory in %s with %d samples at a time: continuing with %s",
                self.phase, now, pulled,
            )  # fmt: skip
            return
        applied = ", ".join(self.ladder.applied) or "none"
        if now > 1:
            layers = coupled_layers(self._model)
            raise Refused(
                f"memory ran out ({failure}), and the batch must not be split: {len(layers)} layers in "
                f"training normalize over it, such as {layers[0]}; levers applied: {applied}. Use a smaller "
                f'{self._option}, or accept other results with coupled="warn".'
            )
        raise CannotFit(
            f"a single sample does not fit: {failure} Levers applied: {applied}. Shorten the longest "
            "samples, or see what `oomph fit` suggests.",
            failure,
        )


_REFUSED = "refused"
