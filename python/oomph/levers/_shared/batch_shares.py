"""Each rank's part of a batch, and the weight of its loss.

Every rank iterates over the same batches in the same order, as one process would, and takes its part of
each: from an indexed dataset it loads only those samples, as with a `DistributedSampler`; batches of
a stream are split after collating. So the global batch is the script's, whatever its
sampler, and the mean over ranks of weighted gradients is the gradient of the whole batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind

from oomph.levers._shared import rank_zero
from oomph.levers._shared.loss_terms import PARAMETERS, SAMPLES, Inseparable, Term, terms
from oomph.levers._shared.splitting import CannotSplit, sample_layout


@dataclass
class BatchShare:
    """A rank's part of a batch."""

    size: int
    """Samples that the rank computes."""
    whole: int
    """Samples of all ranks."""
    empty: bool = False
    """Whether no sample was left for this rank: it computes one that counts for nothing, because
    the others wait for it."""
    constant: Any = None
    divided: tuple[float, ...] = ()
    """As `losses.terms` reads them."""


class SharingLever(Protocol):
    """A lever that divides the script's batches among ranks."""

    world: int
    """Ranks."""
    rank: int
    """This process's."""
    job: Any
    """The `Job` that the lever is installed in."""
    share: BatchShare | None
    """This rank's part of the batch in progress."""
    micro_batch: Any
    """The lever that splits each part further, if the plan has it."""
    refuse: Callable[..., BaseException]
    how: Callable[[], str]
    add_note: Callable[[str], None]

    def trains(self) -> bool:
        """Whether batches are divided: those of evaluation are not."""

    def take(self, share: BatchShare | None) -> None:
        """The script has got its part of a batch."""

    def check_batch(self, share: BatchShare) -> None:
        """Refuse what cannot be divided."""


def bounds(count: int, ranks: int, rank: int) -> tuple[int, int]:
    """Where the part of `rank` begins and ends among `count` samples; the first parts are the larger."""
    size, more = divmod(count, ranks)
    begin = rank * size + min(rank, more)
    return begin, begin + size + (rank < more)


class ShareSampler:
    """A batch sampler that yields this rank's part of each batch of another one."""

    def __init__(self, lever: SharingLever, inner: Any) -> None:
        """`inner` yields lists of indices."""
        self._lever, self._inner = lever, inner
        self.shares: deque[BatchShare | None] = deque()
        """What was yielded, in the order in which the batches will come."""

    def __iter__(self) -> Iterator[list[Any]]:
        """As many batches as `inner` has."""
        self.shares.clear()
        shares = self._lever.trains()
        if shares:
            # Ranks with different parts may have drawn different amounts since the last epoch.
            rank_zero.draw_alike()
        for batch in self._inner:
            if not shares:
                self.shares.append(None)
                yield batch
                continue
            indices = list(batch)
            begin, end = bounds(len(indices), self._lever.world, self._lever.rank)
            share = BatchShare(end - begin, len(indices), empty=begin == end)
            self._lever.check_batch(share)
            self.shares.append(share)
            yield indices[begin:end] or indices[:1]

    def __len__(self) -> int:
        """Batches."""
        return len(self._inner)


def install(lever: SharingLever) -> None:
    """Intervene where a DataLoader asks which samples come next."""
    original = DataLoader._index_sampler.fget  # type: ignore[attr-defined]

    def index_sampler(loader: Any) -> Any:
        inner = original(loader)
        indexed = loader._dataset_kind == _DatasetKind.Map and loader._auto_collation
        # A rank's batches come in the order of the shares, and of the other ranks' batches.
        loader.in_order = True
        return ShareSampler(lever, inner) if indexed else inner

    DataLoader._index_sampler = property(index_sampler)  # type: ignore[assignment]
    lever.job.around_loader.append(lambda loader, iterator: _Iterator(lever, iterator))


class _Iterator:
    """The iterator that the script gets: tells the lever which part it has."""

    def __init__(self, lever: SharingLever, iterator: Any) -> None:
        self._lever, self._iterator = lever, iterator
        sampler = getattr(iterator, "_index_sampler", None)
        self._sampler = sampler if isinstance(sampler, ShareSampler) else None
        self._layout: Any = None

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> Any:
        self._lever.share = None
        batch = next(self._iterator)
        if self._sampler is not None:
            self._lever.take(self._sampler.shares.popleft())
            return batch
        if not self._lever.trains():
            return batch
        try:
            if self._layout is None:
                self._layout = sample_layout(batch)
            pieces = self._layout.split(batch, self._lever.world)
        except CannotSplit as error:
            raise self._lever.refuse(str(error), manually=True) from None
        whole = sum(size for _, size in pieces)
        empty = self._lever.rank >= len(pieces)
        piece, size = pieces[0 if empty else self._lever.rank]
        share = BatchShare(0 if empty else size, whole, empty)
        self._lever.check_batch(share)
        self._lever.take(share)
        return piece

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


def weigh(
    lever: SharingLever, loss: torch.Tensor, share: BatchShare, outputs: list[Any]
) -> torch.Tensor:
    """Weight the terms of `loss` so that the mean over ranks is that of the whole batch.

    Returns the factor of the loss itself, a tensor without dimensions; 1, and says so, if its terms
    have several.
    A collective: every rank comes here with a loss of the same terms.
    """
    micro = lever.micro_batch
    part = BatchShare(max(1, share.size), share.whole, share.empty)
    if micro is not None and micro.batch is not None:
        part.size = micro.batch.size
    found = terms(loss, part, outputs, lever.add_note)
    counted: list[tuple[Term, Any]] = []
    for term in found:
        count = term.count
        if count is None or (isinstance(count, str) and count == PARAMETERS):
            continue
        if isinstance(count, str) and count == SAMPLES:
            count = part.size
        if isinstance(count, torch.Tensor) and micro is not None and micro.batch is not None:
            raise Inseparable(
                "its loss is a mean over targets that are not ignored, and their number in the whole batch "
                "is known only after the last micro-batch; leave out micro_batch, or give every "
                "sample the same number of targets"
            )
        counted.append((term, count))
    ranks, device = float(lever.world), loss.device
    own = torch.zeros(len(counted), dtype=torch.float32, device=device)
    for index, (_, count) in enumerate(counted):
        own[index] = count.detach().to(device, torch.float32) if _is_tensor(count) else float(count)
    if share.empty:
        own.zero_()
    whole = own.clone()
    if counted:
        dist.all_reduce(whole)
    factors = ranks * own / whole.clamp(min=1e-12)
    for index, (term, _) in enumerate(counted):
        term.node.register_prehook(_times(factors[index]))
    if share.empty and share.whole:
        sums = torch.zeros((), device=device)
    else:
        sums = torch.full((), ranks, device=device)
    for term in found:
        if term.count is None:
            term.node.register_prehook(_times(sums))
    one = torch.ones((), device=device)
    counts = [count for _, count in counted]
    if counts and len(found) == len(counts) and (len(counts) == 1 or _are_equal(counts)):
        return factors[0]
    if found and all(term.count is None for term in found):
        return sums
    summed = any(term.count is None for term in found)
    if summed or any(map(_is_tensor, counts)) or (counts and share.whole % lever.world):
        lever.add_note(
            "the loss has terms with different counts: after backward the script reads the "
            "mean of the ranks' own losses"
        )
    return one


def _are_equal(counts: list[Any]) -> bool:
    return not any(map(_is_tensor, counts)) and len(set(counts)) == 1


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _times(weight: torch.Tensor) -> Any:
    # What counts for nothing may be infinite, where a mean over nothing was taken.
    def scaled(gradients: tuple) -> tuple:
        return tuple(
            None
            if g is None
            else torch.where(weight.to(g.device) == 0, torch.zeros_like(g), g * weight.to(g.dtype))
            for g in gradients
        )

    return scaled
