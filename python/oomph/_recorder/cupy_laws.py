"""What `cupy.random` draws has a law that is known, though nothing is drawn; and so has what is computed of it, element by element.

An array's law is a way to draw a sample of one of its elements. Samples of elements that depend on each other are aligned, so that the
mean of `x * x + y * y < 1` is its probability. Nothing is sampled before a size depends on it.
"""

from __future__ import annotations

import functools
import itertools
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

SAMPLES = 1 << 16
_DEEPEST = 100
"""Operations upon each other, after which a law is given up; and how many elements a reduction may have for each result."""

_numbers = itertools.count(1)


class Law:
    """How the elements of one array are distributed."""

    def __init__(
        self, array: Any, draw: Callable[[Law, int, dict[Any, Any]], Any] | None, *upon: View
    ) -> None:
        """`draw` gives the sample of the element at a place in memory, in bytes."""
        self.draw, self.number = draw, next(_numbers)
        self.dtype, self.size = array.dtype, array.size
        self.shape, self.strides = array.shape, array.strides
        self.depth, self.whole = 0, False
        """`whole`: this is not the law of a part, as of what is sorted."""
        self.drawn: frozenset[int] = frozenset()
        for view in upon:
            law = view.law
            self.depth = max(self.depth, law.depth + 1)
            self.whole |= law.whole
            self.drawn = self.drawn | law.drawn if self.drawn else law.drawn
        self.chosen_by: View | None = None
        """The mask whose positions these are."""
        self.masks: dict[Any, Any] = {}

    def index(self, place: int) -> tuple[int, ...]:
        """Of the element that is so many bytes behind the first."""
        strides = self.strides
        found = [0] * len(strides)
        for axis in sorted(range(len(strides)), key=lambda axis: -strides[axis]):
            if strides[axis] > 0:
                found[axis], place = divmod(place, strides[axis])
        return tuple(found)


class View(NamedTuple):
    """An array, or a part of one, whose law is known."""

    law: Law
    place: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def sample(self, index: tuple[int, ...], known: dict[Any, Any]) -> Any:
        """Of the element that belongs to `index` of an array to which this one is broadcast."""
        own = index[len(index) - len(self.shape) :]
        place = self.place + sum(i * s for i, n, s in zip(own, self.shape, self.strides) if n > 1)
        # Masks are asked often, and are small.
        kept = self.law.masks if self.law.dtype.kind == "b" else known
        key = self.law.number, place
        if key not in kept:
            assert self.law.draw is not None
            kept[key] = self.law.draw(self.law, place, known)
        return kept[key]

    def first(self) -> Any:
        """A sample of its first element, which is empty if what it is made of cannot be computed."""
        with np.errstate(all="ignore"):
            try:
                return self.sample((0,) * len(self.shape), {})
            except Exception:
                return np.empty(0)


def generator(*seed: int) -> Any:
    """The same numbers for the same seed."""
    return np.random.RandomState([number % (1 << 32) for number in seed])


def drawn(array: Any, values: Callable[[], Any]) -> Law:
    """The law of draws. `values` divides what may be drawn into equal parts."""
    kept: list[Any] = []

    def draw(law: Law, place: int, known: dict[Any, Any]) -> Any:
        if not kept:
            kept.append(values().astype(law.dtype))
        return generator(law.number, place).permutation(kept[0])

    law = Law(array, draw)
    law.drawn = frozenset([law.number])
    return law


def computed(array: Any, function: Callable[..., Any], parts: list[Any], like: tuple[int, ...] | None = None) -> Law | None:  # fmt: skip
    """What `function` makes of the elements of `parts`, of which some are numbers. `like`: the shape which `array` had before."""
    views = [part for part in parts if isinstance(part, View)]

    def draw(law: Law, place: int, known: dict[Any, Any]) -> Any:
        index = law.index(place)
        if like is not None:
            index = np.unravel_index(index[0], like)  # type: ignore[assignment]
        samples = [p.sample(index, known) if isinstance(p, View) else p for p in parts]
        # What two masks have chosen are no elements of each other.
        fewest = min(s.size for s, p in zip(samples, parts) if isinstance(p, View))
        samples = [s[:fewest] if isinstance(p, View) else s for s, p in zip(samples, parts)]
        return np.asarray(function(*samples)).astype(law.dtype)

    law = Law(array, draw, *views)
    return law if law.depth < _DEEPEST else None


def reduced(array: Any, function: Callable[..., Any], view: View, axis: int) -> Law | None:
    """What `function` makes of the elements along one axis."""
    count = view.shape[axis]

    def draw(law: Law, place: int, known: dict[Any, Any]) -> Any:
        index = list(law.index(place))
        if len(index) < len(view.shape):
            index.insert(axis, 0)
        rows = []
        for index[axis] in range(count):
            rows.append(view.sample(tuple(index), known))
        fewest = min(row.size for row in rows)
        return function(np.stack([row[:fewest] for row in rows]), axis=0).astype(law.dtype)

    law = Law(array, draw, view)
    return law if count < _DEEPEST else None


def chosen(array: Any, view: View, mask: View) -> Law | None:
    """What a mask chooses of the elements, or of the rows: where the mask is, in its sample.

    It is sampled at once: a loop that chooses over and over goes no deeper, and keeps nothing of what was before.
    """
    columns = view.shape[len(mask.shape) :]
    if math.prod(columns) > _DEEPEST:
        return None
    known: dict[Any, Any] = {}
    row = (0,) * len(mask.shape)
    which = mask.sample(row, known)
    kept = {}
    for column in np.ndindex(*columns):
        values = view.sample(row + column, known)
        fewest = min(values.size, which.size)
        kept[column] = values[:fewest][which[:fewest]]

    def draw(law: Law, place: int, known: dict[Any, Any]) -> Any:
        row, *column = law.index(place)
        values = kept[tuple(column)]
        return generator(law.number, row).permutation(values) if row else values

    law = Law(array, draw)
    law.whole, law.drawn = view.law.whole or mask.law.whole, view.law.drawn | mask.law.drawn
    return law


def shuffled(array: Any, view: View, order: Law, whole: bool = False) -> Law:
    """The elements, or rows, in an order that has nothing to do with them; or, if only all of them are looked at, that has."""

    def draw(law: Law, place: int, known: dict[Any, Any]) -> Any:
        row, *rest = law.index(place)
        values = view.sample((0,) * (len(view.shape) - len(rest)) + tuple(rest), known)
        return generator(order.number, row).permutation(values)

    law = Law(array, draw, view)
    law.whole |= whole
    law.drawn |= order.drawn
    return law


def distinct(sample: Any, count: int) -> int:
    """How many different values `count` draws are expected to have: of each, by how likely its own value is."""
    values = np.sort(sample)
    many = 64
    if values.size < 4 * many or values.dtype.kind not in "biuf":
        return len(np.unique(values))
    finest = np.spacing(np.abs(values)) if values.dtype.kind == "f" else 1
    place = np.arange(values.size)
    low = np.searchsorted(values, values[np.maximum(place - many, 0)], "left")
    high = np.searchsorted(values, values[np.minimum(place + many, place[-1])], "right")
    width = values[high - 1].astype(float) - values[low]
    likely = (
        (high - low) / values.size * finest / (width + np.maximum(finest, width / (high - low - 1)))
    )
    hits = count * likely
    return round(count * float(np.mean(-np.expm1(-hits) / hits)))


class Laws:
    """The laws of all arrays that have one."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, Law]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, array: Any) -> View | None:
        """The law of `array`, or of that of which it is a part."""
        base = array.base
        found = self._of.get(id(array if base is None else base))
        if found is None:
            return None
        law = found[1]
        if array.dtype != law.dtype:
            return None
        if base is None:
            return View(law, 0, law.shape, law.strides)
        if law.whole and array.size != law.size:
            return None
        return View(law, array.data.ptr - base.data.ptr, array.shape, array.strides)

    def values(self, array: Any) -> View | None:
        """The same, if there is more to it than an order."""
        view = self.of(array)
        return view if view is not None and view.law.draw is not None else None

    def note(self, array: Any, law: Law | None) -> None:
        """`array` has this law from now on, as long as it lives; if None, nothing is known."""
        root = array if array.base is None else array.base
        if law is None or root.size != array.size or (root is not array and not array.flags.c_contiguous):  # fmt: skip
            self._of.pop(id(root), None)
            return
        key = id(root)
        self._of[key] = weakref.ref(root, functools.partial(self._ends, key)), law

    def _ends(self, key: int, gone: Any) -> None:
        if key in self._of and self._of[key][0] is gone:
            del self._of[key]
