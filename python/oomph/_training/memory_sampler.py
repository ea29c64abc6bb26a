"""Batches of varying length under a memory budget."""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oomph._older_python import zip
from oomph._oomph import pack

WINDOW = 50_000
"""Number of samples to sort by length together: many batches' worth, so that the order stays random."""

UNLIMITED = 2**31

VERIFICATIONS = 8
"""How often to try and lower a measured budget."""


@dataclass(frozen=True)
class SampleCost:
    """Bytes that a batch needs: `base + count x (linear x length + quadratic x length^2)`.

    `length` is the padded length of its samples, in tokens, pixels or whatever was measured.
    """

    linear: float = 1.0
    quadratic: float = 0.0
    base: float = 0.0

    def batch(self, count: int, length: float) -> float:
        """What `count` samples padded to `length` cost."""
        return self.base + count * (self.linear * length + self.quadratic * length * length)


class MemoryBatchSampler:
    """A batch sampler for `DataLoader`: as many samples per batch as a budget allows.

    ::

        sampler = oomph.MemoryBatchSampler(lengths, budget=16_384)         # padded tokens a batch
        loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=…)

    With a measured cost the budget is bytes: see `measure_sample_cost`.

    Groups samples of similar length, in shuffled batches; every sample is in exactly one batch
    of an epoch. Each rank gets the same number of batches, and batches of similar cost in the same step:
    if the number of batches is not a multiple of the ranks, some are split in two (in the rare case
    that none can be split, fewer than `ranks` samples are omitted). The same seed and epoch give
    the same batches everywhere; `state_dict` stores the position in an epoch.

    Parameters
    ----------
    lengths : the length of each sample: a list, a NumPy array, a tensor; below 2^32.
    budget : the maximum cost of a batch, including the base.
    cost : the cost of a batch; by default its padded length, so that the budget is in tokens.
    max_samples : the most samples in a batch.
    shuffle, seed : whether to shuffle, and the seed. `set_epoch` changes the order.
    largest_first : start with the costliest batches, so that memory runs out in the first step or never.
    rank, ranks : this rank and the world size; by default those of `torch.distributed`.
    oversize : a sample above the budget raises ("error"), gets its own batch ("single"), or is
    omitted ("drop").
    window : samples to sort by length at a time; 0 for all.
    """

    def __init__(
        self,
        lengths: Any,
        budget: float,
        *,
        cost: SampleCost | None = None,
        max_samples: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        largest_first: bool = False,
        rank: int | None = None,
        ranks: int | None = None,
        oversize: str = "error",
        window: int = WINDOW,
    ) -> None:
        """See the class. Raises `ValueError` for samples that cannot be packed."""
        self._lengths = _as_array(lengths)
        self.cost = cost or SampleCost()
        if oversize not in ("error", "single", "drop"):
            raise ValueError(f'oversize: expected "error", "single" or "drop"; found {oversize!r}')
        if not budget > self.cost.base:
            raise ValueError(
                f"budget: {budget} leaves nothing above the base of {self.cost.base} that every "
                "batch costs"
            )
        if rank is None or ranks is None:
            rank, ranks = _own_rank()
        if not 0 <= rank < ranks:
            raise ValueError(f"rank: expected 0 to {ranks - 1}; found {rank}")
        self._budget = float(budget) - self.cost.base
        self._max_samples = max_samples or UNLIMITED
        self._shuffle = shuffle
        self._seed = seed
        self._largest_first = largest_first
        self._rank, self._ranks = rank, ranks
        self._oversize = oversize
        self._window = window
        self._epoch = 0
        self._position = 0
        self._packed: tuple[int, memoryview, memoryview] | None = None
        self._alone = [] if oversize == "error" else self._too_long()

    def set_epoch(self, epoch: int) -> None:
        """The order of another epoch, from its beginning."""
        if epoch != self._epoch:
            self._position = 0
        self._epoch = epoch

    def __len__(self) -> int:
        """Batches of this rank in this epoch, including those already yielded."""
        return len(self._batches()[1]) // self._ranks

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches, from the position of `state_dict`; afterwards the epoch is over."""
        samples, ends = self._batches()
        kept = self._kept()
        for step in range(self._position, len(ends) // self._ranks):
            at = step * self._ranks + self._rank
            chosen = samples[ends[at - 1] if at else 0 : ends[at]].tolist()
            # Before yielding: a checkpoint made during the batch counts it as done.
            self._position = step + 1
            yield chosen if kept is None else [kept[index] for index in chosen]
        self._position = 0

    def state_dict(self) -> dict[str, Any]:
        """The position in the epoch. With workers, a loader is ahead of training by what it prefetched."""
        return dict(
            epoch=self._epoch, position=self._position, seed=self._seed, ranks=self._ranks,
            samples=len(self._lengths),
        )  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position. Seed, ranks and samples must be the same."""
        for name, own in (
            ("seed", self._seed),
            ("ranks", self._ranks),
            ("samples", len(self._lengths)),
        ):
            if state[name] != own:
                raise ValueError(
                    f"the saved position is of other batches: {name} was {state[name]}, is {own}"
                )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])

    def padding(self) -> float:
        """The share of padded lengths that is padding, over all ranks' batches of this epoch."""
        samples, ends = self._batches()
        kept = self._kept()
        padded = real = start = 0
        for end in ends:
            own = [
                self._lengths[i if kept is None else kept[i]] for i in samples[start:end].tolist()
            ]
            padded += max(own) * len(own)
            real += sum(own)
            start = end
        return 1 - real / padded if padded else 0.0

    def _too_long(self) -> list[int]:
        """Samples above the budget by themselves."""
        longest = self._longest_fitting()
        if max(self._lengths, default=0) <= longest:
            return []
        return [index for index, length in enumerate(self._lengths) if length > longest]

    def _kept(self) -> Sequence[int] | None:
        """The samples that are packed, if some are omitted."""
        if self._oversize != "drop" or not self._alone:
            return None
        if not hasattr(self, "_kept_samples"):
            dropped = set(self._alone)
            self._kept_samples = array.array(
                "I", (i for i in range(len(self._lengths)) if i not in dropped)
            )
        return self._kept_samples

    def _batches(self) -> tuple[memoryview, memoryview]:
        if self._packed is not None and self._packed[0] == self._epoch:
            return self._packed[1:]
        lengths = self._lengths
        kept = self._kept()
        if kept is not None:
            lengths = array.array("I", (lengths[i] for i in kept))
        elif self._alone:
            # Shortened to what just fits, they leave room for no other.
            just = self._longest_fitting()
            if just == 0:
                raise ValueError("budget: no sample of any length fits by itself")
            lengths = array.array("I", lengths)
            for index in self._alone:
                lengths[index] = just
        samples, ends = pack(
            lengths.tobytes(), self.cost.linear, self.cost.quadratic, self._budget, self._max_samples,
            self._window, self._shuffle, self._largest_first, self._ranks,
            (self._seed * 0x9E3779B1 + self._epoch) % 2**64,
        )  # fmt: skip
        self._packed = (self._epoch, memoryview(samples).cast("I"), memoryview(ends).cast("I"))
        return self._packed[1:]

    def _longest_fitting(self) -> int:
        """The longest sample that fits by itself. Costs rise with the length."""
        low, high = 0, 2**32 - 1
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.cost.batch(1, middle) - self.cost.base <= self._budget
            low, high = (middle, high) if fits else (low, middle - 1)
        return low


def _as_array(lengths: Any) -> array.array[int]:
    """`lengths` as 32-bit unsigned integers."""
    if isinstance(lengths, array.array) and lengths.typecode == "I":
        return lengths
    numpy = sys.modules.get("numpy")
    if hasattr(lengths, "numpy") and numpy is not None:
        lengths = lengths.detach().cpu().numpy()
    if numpy is not None and isinstance(lengths, numpy.ndarray):
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
            raise ValueError(
                f"lengths: expected one row of integers; found shape {lengths.shape} of "
                f"{lengths.dtype}"
            )
        if lengths.size and (lengths.min() < 0 or lengths.max() >= 2**32):
            raise ValueError("lengths: expected numbers from 0 to 2^32 - 1")
        result = array.array("I")
        result.frombytes(numpy.ascontiguousarray(lengths, dtype=numpy.uint32).tobytes())
        return result
    try:
        return array.array("I", lengths)
    except (TypeError, OverflowError) as error:
        raise ValueError(f"lengths: expected integers from 0 to 2^32 - 1: {error}") from None


def _own_rank() -> tuple[int, int]:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def measure_sample_cost(
    step: Callable[[Any], Any],
    make_batch: Callable[[int, int], Any],
    longest: int,
    *,
    model: Any = None,
    optimizer: Any = None,
) -> tuple[SampleCost, float]:
    """Measure on this GPU what batches cost: the cost for `MemoryBatchSampler` and its budget, in bytes.

    ::

        cost, budget = oomph.measure_sample_cost(step, make_batch, longest=2048, model=m, optimizer=o)
        sampler = oomph.MemoryBatchSampler(lengths, budget, cost=cost)

    `make_batch(count, length)` makes a batch of samples of one length; `step(batch)` is a whole
    optimizer step. It tries lengths up to `longest` with three steps each, and restores `model` and
    `optimizer`. The budget leaves the usual margin.
    """
    from oomph._training.batch_size_finder import BatchTrials
    from oomph._training.memory_model import MARGIN

    trials = BatchTrials(step, model, optimizer)

    def measure(count: int, length: int) -> float:
        """Bytes at the peak, 0 if it does not fit."""
        probe = trials.run(lambda: make_batch(count, length))
        # Reserved memory, since holes count too.
        return float(probe.reserved) if probe.fits else 0.0

    half, quarter = max(1, longest // 2), max(1, longest // 4)
    try:
        if not trials.gpu_memory.measures:
            raise ValueError(f"memory cannot be measured on {trials.gpu_memory.device}")
        # Memory that does not depend on the batch, such as the optimizer's step, may hide the batch's: increase
        # the batch until it determines the peak.
        floor = measure(1, quarter)
        count, peak = 1, measure(1, longest)
        if not peak:
            raise ValueError(f"a single sample of length {longest} does not fit this GPU")
        points = [(1, quarter, floor), (1, longest, peak)]
        while peak < 2 * floor and (more := measure(count * 4, longest)):
            count, peak = count * 4, more
            points.append((count, longest, peak))
        for number, length in (
            (count, half),
            (2 * count, half),
            (2 * count, quarter),
            (4 * count, quarter),
        ):
            points.append((number, length, measure(number, length)))
        points = [point for point in points if point[2]]
        telling = [point for point in points if point[2] > 1.2 * floor]
        cost = _fit(telling if len(telling) > 2 else points)
        budget = trials.gpu_memory.usable() * (1 - MARGIN)
        # The allocator's holes are not linear, so promise only the largest batch that was tried.
        for _ in range(VERIFICATIONS):
            number = int((budget - cost.base) / (cost.batch(1, longest) - cost.base))
            if number < 2:
                break
            if measure(number, longest):
                budget = cost.batch(number, longest)
                break
            budget *= 1 - MARGIN
    finally:
        trials.restore()
    return cost, budget


def _fit(points: list[tuple[int, int, float]]) -> SampleCost:
    """Base, linear and quadratic cost by least squares, none below zero, no point above it."""
    import torch

    columns = [
        torch.tensor([float(count * length**power if power else 1) for count, length, _ in points])
        for power in (0, 1, 2)
    ]
    wanted = torch.tensor([bytes_ for _, _, bytes_ in points], dtype=torch.float64)
    using = [0, 1, 2]
    while True:
        # Columns of one scale: squares of lengths dwarf the rest.
        scale = [columns[i].double().abs().max().clamp(min=1) for i in using]
        matrix = torch.stack(
            [columns[i].double() / s for i, s in zip(using, scale, strict=True)], 1
        )
        solved = torch.linalg.lstsq(matrix, wanted[:, None], driver="gelsd").solution[:, 0]
        values = {i: float(v / s) for i, v, s in zip(using, solved, scale, strict=True)}
        worst = min(using, key=lambda i: values[i])
        if values[worst] >= 0 or len(using) == 1:
            break
        using.remove(worst)
    base, linear, quadratic = (max(0.0, values.get(i, 0.0)) for i in (0, 1, 2))
    cost = SampleCost(linear, quadratic, base)
    short = max(bytes_ - cost.batch(count, length) for count, length, bytes_ in points)
    return SampleCost(linear, quadratic, base + max(0.0, short))
