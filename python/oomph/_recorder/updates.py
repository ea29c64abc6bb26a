"""Steps of a script without an optimizer, which changes its weights itself."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from oomph._recorder.addresses import memory_of
from oomph._recorder.marks import Marks
from oomph._recorder.progress import OPTIMIZER, Moment, Progress


class Updates:
    """Sees weights change after a backward pass; the next operator that needs gradients ends the step.

    They change in place (`p -= lr * p.grad` without gradients, `p.data.add_`, `torch._foreach_add_`), or other tensors take their
    places (`params = {k: p - lr * g}`), and those before are gone. Where the script, or garbage, still holds these, it is known only
    when the next pass asks for gradients of the others: the step ended where the first operator since needed gradients. A pass after
    which none of this happens is one of several of a step. Hooks may change them within the pass already.
    """

    def __init__(self, progress: Progress, marks: Marks, layer: Any, inference: bool) -> None:
        """`layer` says what operators change (`ValueLayer.changes`). With `inference` the script has no steps."""
        self._progress, self._marks, self._layer = progress, marks, layer
        self._inference = inference
        self.waits = False
        """Whether a backward pass has given gradients of weights, and no operator has needed any since."""
        self._by_hand = False
        """Whether the script's steps are its updates."""
        self._weights: dict[int, weakref.ref[torch.Tensor]] = {}
        """Of the newest pass that was looked at, by `id`."""
        self._known: dict[int, weakref.ref[torch.Tensor]] = {}
        """Of all such passes."""
        self._addresses: set[int] = set()
        self._storages: list[Any] = []
        self._shapes: list[torch.Size] = []
        self._written: set[int] = set()
        """The addresses of weights that were changed in place."""
        self._round: list[Any] = []
        """What was changed in turn, until something of it is changed again: a network by its addresses, or by its shapes."""
        self._main: Any = None
        """The network whose change ends a step."""
        self._begins: Moment | None = None
        """Where the next step begins, should its weights turn out to be others."""
        self._passes = self._passes_of_a_step = 0

    def forget(self) -> None:
        """A part of the script begins."""
        self._rest()
        self._by_hand = False
        self._round, self._main = [], None
        self._passes = self._passes_of_a_step = 0

    @property
    def may_come(self) -> bool:
        """Whether the script has made no optimizer so far, whose steps would be the job's."""
        return not self._inference and (self._by_hand or not self._progress.trains)

    def outweighs_known(self, asked: Iterable[torch.Tensor]) -> bool:
        """Whether a function's derivative that is `asked` for is that of weights: a force field's is that of positions, and its weights,
        which need gradients, too, are more."""
        asked = list(asked)
        own = {id(t) for t in asked}
        others = (p for p in self._marks.weights() if p.is_cuda and id(p) not in own)
        most = sum(p.nbytes for p in others if p.requires_grad)
        return bool(asked) and sum(t.nbytes for t in asked) >= most

    @property
    def is_lost(self) -> bool:
        """Whether the weights of the pass before are all gone, so that the next is for others."""
        return bool(self._weights) and all(one() is None for one in self._weights.values())

    def begins(self, leaves: Iterable[torch.Tensor] | None) -> None:
        """A backward pass begins, with these leaves; None: with some of those of passes before. Hooks may change them in it."""
        if self.waits or not self._progress.is_recorded:
            return
        asked = leaves
        if asked is None:
            asked = [t for t in (one() for one in self._known.values()) if t is not None]
        self._addresses = {address for t in asked for address in memory_of(t)}
        self._written = set()
        self._layer.changes = self._changed

    def changed_in_it(self, leaf: torch.Tensor) -> bool:
        """Whether hooks of the pass that ends have changed `leaf`."""
        return bool(self._written.intersection(memory_of(leaf)))

    def gave(self, weights: Iterable[torch.Tensor] | None, new: bool = False) -> None:
        """A backward pass has given gradients of `weights`; None: of some of those of passes before. `new`: they are the function's, and
        passes of models that it differentiates are no inference."""
        progress = self._progress
        if not progress.is_recorded:
            # Operators are not watched: a step has as many passes as the last that was recorded.
            self._passes += 1
            if self._by_hand and self._passes >= self._passes_of_a_step:
                self._passes = 0
                progress.end_step()
            return
        if weights is not None:
            self._weights = {id(t): weakref.ref(t) for t in weights}
            alive = {key: one for key, one in self._known.items() if one() is not None}
            self._known = alive | self._weights
        asked = self._known if weights is None else self._weights
        found = [t for t in (one() for one in asked.values()) if t is not None]
        if not found:
            if not self.waits:
                self._layer.changes = None
            return
        storages = [StorageWeakRef(t.untyped_storage()) for t in found]
        before, self._shapes = self._shapes, [t.shape for t in found]
        are_alike = before == self._shapes
        if self._begins is not None and are_alike and not set(storages) & set(self._storages):
            begins = self._begins
            if self._end():
                progress.end_step(begins)
        self._passes += 1
        self._by_hand = self._by_hand or new
        progress.trains = progress.trains or new
        self._addresses = {address for t in found for address in memory_of(t)}
        self._storages, self._begins = storages, None
        self._written &= self._addresses
        self.waits = True
        self._layer.changes = self._changed
        if self._by_hand:
            progress.say(OPTIMIZER)
        progress.boundary("optimizer", progress.step)

    def _changed(self, tensors: Iterable[Any]) -> None:
        """An operator changes `tensors`."""
        given = (t for one in tensors for t in (one if isinstance(one, (list, tuple)) else (one,)))
        for t in given:
            if isinstance(t, torch.Tensor):
                self._written |= self._addresses.intersection(memory_of(t))

    def _are_made(self) -> bool:
        if self._written:
            return True
        return bool(self._storages) and all(storage.expired() for storage in self._storages)

    def goes_forward(self) -> bool:
        """An operator, or a model, is about to need gradients: whether that ends a step. Raise `StepsDone` after the last one."""
        if not self.waits:
            return False
        if not self._are_made():
            if self._begins is None:
                self._begins = self._progress.here()
            return False
        if not self._end():
            return False
        self._progress.end_step()
        return True

    def _end(self) -> bool:
        """Weights have changed: whether a step ends with them, and not only the turn of one network of several."""
        changed = frozenset(self._written) or tuple(self._shapes)
        self._rest()
        self._by_hand = self._progress.trains = True
        ends = self._is_last(changed)
        if ends:
            self._passes, self._passes_of_a_step = 0, self._passes
        return ends

    def _is_last(self, changed: Any) -> bool:
        """Whether `changed` is the last of a round. The first that a round begins with ends a step until it is known that others
        follow, as there may be none."""
        known = next((one for one in self._round if _is_same(one, changed)), None)
        if known is None:
            self._round = [changed] if self._main is not None else [*self._round, changed]
            self._main = None
            return len(self._round) == 1
        if self._main is None:
            self._main = self._round[-1]
        return known is self._main

    def _rest(self) -> None:
        self.waits, self._written = False, set()
        self._layer.changes = self._begins = None
        self._storages = []

    def finish(self) -> None:
        """The script has ended, perhaps with an update; of weights that it still holds, the number of passes tells."""
        is_whole = 0 < self._passes_of_a_step <= self._passes
        if self.waits and (is_whole or self._are_made()):
            self._progress.last_step = None
            if self._end():
                self._progress.end_step()


def _is_same(one: Any, other: Any) -> bool:
    """Whether two changes were of one network: in place, of the same memory, or else of weights of the same shapes."""
    if isinstance(one, frozenset) and isinstance(other, frozenset):
        return bool(one & other)
    return bool(one == other)
