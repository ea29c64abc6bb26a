"""Which bytes of device memory hold values that nobody computed.

A write through a view changes what is known of that view alone, so parts of a storage are kept apart
where a program writes parts: a mask of its bytes.
"""

from __future__ import annotations

import torch

from oomph._older_python import zip
from oomph._virtual_gpu.device_memory import base_pointer
from oomph._virtual_gpu.fills import Fill

MASK_BYTES = 16 << 20
"""The largest part of a storage that is told apart from the rest, in bytes. Beyond, what is unknown stays
unknown until all of it is overwritten, so that weights cost no memory."""


class Place:
    """Which bytes of its storage a tensor is: keeps nothing alive."""

    __slots__ = ("_dense", "_shape", "_strides", "_whole", "end", "pointer", "start")

    def __init__(self, t: torch.Tensor) -> None:
        """Of a strided tensor with elements."""
        size = t.element_size()
        self.pointer = base_pointer(t)
        steps = [(n, step) for n, step in zip(t.shape, t.stride(), strict=True) if step and n > 1]
        span = sum((n - 1) * step for n, step in steps) + 1
        self.start = int(t.storage_offset()) * size
        self.end = self.start + span * size
        self._shape = [*(n for n, _ in steps), size]
        self._strides = [*(step * size for _, step in steps), 1]
        self._dense = t.numel() == span
        self._whole: bool | None = None

    def whole(self, t: torch.Tensor) -> bool:
        """Whether `t`, which this is the place of, is all of its storage."""
        if self._whole is None:
            self._whole = self._dense and self.start == 0 and not _more_behind(t, self.end)
        return self._whole

    def of(self, mask: torch.Tensor) -> torch.Tensor:
        """What a mask of the storage's bytes says of these; the mask reaches to their end."""
        return mask.as_strided(self._shape, self._strides, self.start)


def _more_behind(t: torch.Tensor, end: int) -> bool:
    """Whether the storage of `t` goes on after `end` bytes.

    Not asked of the storage, whose Python object would count as one more owner.
    """
    try:
        t.as_strided((1,), (1,), end // t.element_size())
    except RuntimeError:
        return False
    return True


class _Storage:
    """What is unknown of one storage: `mask` has a 1 for each of its first bytes that is, and `rest` is of the others.

    It is `stale` if it holds what others left there, as nothing was written to it since.
    """

    __slots__ = ("mask", "rest", "stale", "why")

    def __init__(self, rest: bool, why: str | None = None, stale: bool = False) -> None:
        # Not a tensor: one that is made in inference mode cannot be changed outside.
        self.mask = bytearray()
        self.rest = rest
        self.why = why
        self.stale = stale

    def set(self, place: Place, unknown: bool) -> None:
        self._reach(place.end)
        place.of(torch.frombuffer(self.mask, dtype=torch.bool)).fill_(unknown)

    def touches(self, place: Place) -> bool:
        if place.start >= len(self.mask):
            return self.rest
        if place.end > len(self.mask) and self.rest:
            return True
        self._reach(place.end)
        return bool(place.of(torch.frombuffer(self.mask, dtype=torch.bool)).any())

    def _reach(self, end: int) -> None:
        if end > len(self.mask):
            self.mask.extend((b"\1" if self.rest else b"\0") * (end - len(self.mask)))


class Contents:
    """Storages of which something is unknown; after `lose_all`, also those of which all is known again."""

    def __init__(self) -> None:
        """Nothing is unknown."""
        self._storages: dict[int, _Storage] = {}
        self._others = False
        # What repeats in storages that are otherwise unknown.
        self.fills: dict[int, Fill] = {}

    def __contains__(self, pointer: int) -> bool:
        """Whether something is unknown of the storage that begins at `pointer`."""
        storage = self._storages.get(pointer)
        return self._others if storage is None else storage.rest or 1 in storage.mask

    def unknown(self, t: torch.Tensor) -> bool:
        """Whether some element of `t` is."""
        if not self._storages and not self._others:
            return False
        storage = self._storages.get(base_pointer(t))
        if t.numel() == 0:
            return False
        if storage is None:
            return self._others
        return storage.touches(Place(t)) if storage.mask else storage.rest

    def nowhere_known(self, t: torch.Tensor) -> bool:
        """Whether nothing at all is known of the storage of `t`. Quicker than `unknown`, which is also true of parts."""
        pointer = base_pointer(t)
        storage = self._storages.get(pointer)
        return storage is not None and storage.rest and not storage.mask and pointer not in self.fills  # fmt: skip

    def stale(self, t: torch.Tensor) -> bool:
        """Whether nothing was written to the storage of `t` since it is one."""
        storage = self._storages.get(base_pointer(t))
        return storage is not None and storage.stale and self.nowhere_known(t)

    def fill(self, t: torch.Tensor) -> Fill | None:
        """What repeats in `t`, if that is all that is known of it."""
        if not self.fills or not t.is_cuda or t.is_neg() or t.is_conj() or t.numel() == 0:
            return None
        found = self.fills.get(base_pointer(t))
        return found if found is not None and found.values.dtype == t.dtype else None

    def repeats(self, t: torch.Tensor, fill: Fill) -> bool:
        """Whether the known value of `fill` repeats in `t` already."""
        before = self.fill(t)
        if before is None or not before.known or not fill.known:
            return False
        return len(fill.values) == 1 and torch.equal(before.values, fill.values)

    def set_fill(self, t: torch.Tensor, fill: Fill, why: str | None = None) -> None:
        """`fill` repeats in `t`, by the rule `why` if it is not known. Nothing is known of a part unlike the rest."""
        if self.repeats(t, fill):
            return
        self.lose(t, why)
        if Place(t).whole(t):
            self.fills[base_pointer(t)] = fill

    def lose_all(self) -> None:
        """Everything is unknown that is in memory now."""
        self.fills.clear()
        self._storages.clear()
        self._others = True

    def why(self, t: torch.Tensor) -> str | None:
        """By what rule the unknown elements of `t` got their contents, if that was said."""
        storage = self._storages.get(base_pointer(t))
        return storage.why if storage is not None else None

    def lose_storage(self, pointer: int, why: str | None = None, stale: bool = False) -> None:
        """All of a storage is unknown, by the rule `why`, or was not written at all."""
        self.fills.pop(pointer, None)
        self._storages[pointer] = _Storage(True, why, stale)

    def forget_storage(self, pointer: int) -> None:
        """A storage is known, or gone."""
        self.fills.pop(pointer, None)
        if self._others:
            self._storages[pointer] = _Storage(False)
        else:
            self._storages.pop(pointer, None)

    def move_storage(self, before: int, now: int) -> None:
        """The contents of a storage are at another place."""
        self.fills.pop(before, None)
        self.fills.pop(now, None)
        storage = self._storages.pop(before, None) or _Storage(self._others)
        if storage.rest or storage.mask or self._others:
            self._storages[now] = storage
        else:
            self._storages.pop(now, None)

    def lose(self, t: torch.Tensor, why: str | None = None) -> None:
        """All elements of `t` are unknown, by the rule `why`; the rest of its storage is what it was."""
        if t.numel() == 0:
            return
        pointer = base_pointer(t)
        self.fills.pop(pointer, None)
        storage = self._storages.get(pointer)
        if storage is not None and storage.rest and not storage.mask:
            if storage.why != why:
                storage.why = None
            # Integers in it may be chosen by a rule, and are written.
            storage.stale = storage.stale and t.is_floating_point()
            return
        place = Place(t)
        if place.end > MASK_BYTES or place.whole(t):
            self.lose_storage(pointer, why)
            return
        if storage is None and self._others:
            return
        if storage is None:
            storage = self._storages[pointer] = _Storage(False, why)
        elif storage.why != why:
            storage.why = None
        storage.set(place, True)

    def learn(self, t: torch.Tensor) -> None:
        """All elements of `t` are known; the rest of its storage is what it was."""
        pointer = base_pointer(t)
        if (pointer in self._storages or self._others) and t.numel():
            place = Place(t)
            self.learn_place(place, place.whole(t))

    def learn_place(self, place: Place, whole: bool) -> None:
        """The same for a place, and whether it is the whole storage."""
        self.fills.pop(place.pointer, None)
        storage = self._storages.get(place.pointer)
        if storage is None:
            if not self._others:
                return
            storage = self._storages[place.pointer] = _Storage(True)
        if whole:
            self.forget_storage(place.pointer)
        elif place.end <= MASK_BYTES:
            storage.set(place, False)
            if not storage.rest and 1 not in storage.mask:
                self.forget_storage(place.pointer)
