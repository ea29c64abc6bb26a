"""Follows what a script draws with `cupy.random` through CuPy's operations, so that sizes that depend on it are the expected ones."""

from __future__ import annotations

import ctypes
import functools
import operator
import statistics
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from oomph._recorder import cupy_laws as laws
from oomph._user_code import is_user_file, user_line
from oomph._virtual_gpu.assumptions import Assumptions

_LAW = "the expected number of {}, by the law of its draws"
_TWICE = "whether a sparse matrix has entries twice is not computed: a few are, which needs the most memory"

_PARAMETERS = {
    name: count
    for count, names in enumerate((
        "random random_sample rand standard_normal randn standard_exponential standard_cauchy",
        "choice permutation chisquare exponential geometric logseries pareto poisson power rayleigh standard_gamma standard_t weibull zipf",
        "uniform normal randint integers beta binomial f gamma gumbel laplace logistic lognormal negative_binomial vonmises wald",
        "hypergeometric triangular",
    ))
    for name in names.split()
}  # fmt: skip
"""What CuPy draws, and by how many parameters, which come first; NumPy has the same."""
_OTHER = ("size", "dtype", "out", "method", "a")
_BINARY = "add sub mul truediv floordiv mod pow and or xor lshift rshift"
_OPERATORS = f"{_BINARY} lt le gt ge eq ne neg abs invert".split()
_REDUCTIONS = ("sum", "prod", "mean", "max", "min", "any", "all")
_WRITES = ("put", "set", "scatter_add", "scatter_max", "scatter_min", "partition", "fill")
_SIMPLE = (bool, int, float, np.number, np.bool_)

_PARTS = (laws.View, *_SIMPLE)


class Draws:
    """The laws of arrays, and what is expected of them."""

    def __init__(self, assumptions: Assumptions) -> None:
        """`assumptions` collects what was expected, with its line."""
        self.laws, self._assumptions = laws.Laws(), assumptions
        self._once: set[int] = set()
        """Draws of which no two are the same."""
        self.different: tuple[int, int] | None = None
        """While CuPy looks for what is there twice: of how many, and how many differ."""

    def watch(self, cupy: Any) -> None:
        """Of CuPy, which has been imported."""
        array = self._array = cupy.ndarray
        for owner in (cupy.random.RandomState, cupy.random.Generator):
            for name in _PARAMETERS:
                self._after(owner, name, functools.partial(self._draws, name))
        for name in _OPERATORS:
            function = getattr(operator, f"__{name}__")
            for sign, order in (("", 1), ("r", -1), ("i", 1)):
                if not sign or name in _BINARY.split():
                    self._after(array, f"__{sign}{name}__", functools.partial(self._element, function, order))  # fmt: skip
        for name, function in {"astype": _same, "copy": _same, "flatten": _same, "ravel": _same, "clip": np.clip}.items():  # fmt: skip
            self._after(array, name, functools.partial(self._element, function, 1))
        for name in _REDUCTIONS:
            self._after(array, name, functools.partial(self._reduces, getattr(np, name)))
        for name in _WRITES:
            self._after(array, name, lambda result, this, *_, **__: self.laws.note(this, None))
        self._after(array, "sort", lambda _, this, *__, **___: self._orders(this, this))
        self._after(array, "argsort", lambda result, this, *_, **__: self._orders(result, None))
        self._assigns(array)
        self._after(array, "__getitem__", lambda r, this, index: self._chooses(r, this, index))
        self._after(array, "take", self._takes)
        self._after(array, "compress", self._compresses)
        self._after(array, "nonzero", self._finds)
        for name, value in list(vars(cupy).items()):
            if isinstance(value, cupy.ufunc) and hasattr(np, name):
                setattr(cupy, name, _Function(value, functools.partial(self._element, getattr(np, name), 1), self))  # fmt: skip
        for name, function in {"where": np.where, "ascontiguousarray": _same, "array": _same}.items():  # fmt: skip
            self._after(cupy, name, functools.partial(self._element, function, 1))
        self._after(cupy, "count_nonzero", functools.partial(self._reduces, np.count_nonzero))
        self._after(cupy, "copyto", lambda _, this, *__, **___: self.laws.note(this, None))
        self._after(cupy, "lexsort", lambda result, *_, **__: self._orders(result, None))
        self._after(cupy, "cumsum", self._counts_different)
        self._kernels(cupy)
        norm = functools.partial(self._reduces, np.linalg.norm)
        self._after(cupy.linalg._norms, "_norm_ord2", norm)
        module = cupy._manipulation.add_remove
        module._unique_1d = self._unique(module._unique_1d)

    def watch_sparse(self, module: Any) -> None:
        """Of CuPy's sparse matrices, whose entries may be there twice."""
        matrix = module._coo_base if hasattr(module, "_coo_base") else module.coo_matrix
        matrix.sum_duplicates = self._sum_duplicates(matrix.sum_duplicates)

    # ---- what is asked ----

    def expected(self, mask: Any) -> int | None:
        """How many elements `mask` chooses; None if its law is unknown."""
        if self.different is not None and mask.size == self.different[0]:
            return self.different[1]
        view = self.laws.values(mask)
        sample = None if view is None else view.first()
        if sample is None or not sample.size:
            return None
        self._say("elements that a mask chooses")
        return round(mask.size * float(np.mean(sample != 0)))

    def known(self, array: Any) -> bool:
        """Whether the law of `array` is."""
        return self.laws.values(array) is not None

    def _unique(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """CuPy's `_unique_1d`, whose values differ as often as expected."""

        @functools.wraps(original)
        def unique(this: Any, *args: Any, **named: Any) -> Any:
            view = self.laws.values(this) if isinstance(this, self._array) else None
            if view is not None and view.first().size:
                self._say("different values")
                once = view.law.number in self._once
                count = this.size if once else laws.distinct(view.first(), this.size)
                self.different = this.size, count
            try:
                return original(this, *args, **named)
            finally:
                self.different = None

        return unique

    def _sum_duplicates(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """That of sparse matrices, which adds what is there twice."""

        @functools.wraps(original)
        def sum_duplicates(matrix: Any) -> Any:
            if not matrix.has_canonical_format and matrix.row.size > 1:
                self.different = self._pairs(matrix)
            view = self.laws.values(matrix.data)
            try:
                original(matrix)
                if view is not None and self.different is not None and self.different[1] > 0.99 * self.different[0]:  # fmt: skip
                    # Hardly any is a sum.
                    order = laws.Law(matrix.data, None)
                    self.laws.note(matrix.data, laws.shuffled(matrix.data, view, order, True))
            finally:
                self.different = None

        return sum_duplicates

    def _pairs(self, matrix: Any) -> tuple[int, int] | None:
        count = matrix.row.size
        row, column = self.laws.values(matrix.row), self.laws.values(matrix.col)
        # CuPy takes this way for its own choice without replacement, too.
        if row is None or column is None or row.law.drawn | column.law.drawn <= self._once:
            self._assumptions.add("shape", _TWICE, user_line())
            return count, count
        self._say("different pairs of indices")
        known: dict[Any, Any] = {}
        rows, columns = row.sample((0,), known), column.sample((0,), known)
        fewest = min(rows.size, columns.size)
        keys = rows[:fewest].astype(np.int64) * matrix.shape[1] + columns[:fewest]
        different = laws.distinct(keys, count)
        return None if different == count else (count, different)

    def _say(self, what: str) -> None:
        self._assumptions.add("shape", _LAW.format(what), user_line())

    # ---- what CuPy does ----

    def _after(self, owner: Any, name: str, then: Callable[..., Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        array = self._array

        @functools.wraps(original)
        def followed(*args: Any, **named: Any) -> Any:
            result = original(*args, **named)
            if self.laws or owner is not array:
                try:
                    then(result, *args, **named)
                except Exception:
                    # What cannot be followed has no law, and the script goes on.
                    self.forget([result, *args[:1]])
            return result

        setattr(owner, name, followed)

    def _draws(self, name: str, result: Any, _: Any, /, *args: Any, **named: Any) -> None:
        if type(result) is not self._array:
            return
        law, given = None, args[: _PARAMETERS[name]]
        more = {
            key: value for key, value in named.items() if key not in _OTHER and value is not None
        }
        if name in ("choice", "permutation"):
            again = name == "choice" and (args[2] if len(args) > 2 else more.pop("replace", True))
            given = (*given, named["a"]) if "a" in named else given
            evenly = not more and args[3:] in ((), (None,))
            if evenly and all(isinstance(one, int) for one in given):
                law = laws.drawn(result, lambda: _whole(*given))
                if not again:
                    self._once.add(law.number)
        elif all(value is None or isinstance(value, _SIMPLE) for value in (*given, *more.values())):
            values: Callable[..., Any] = _EXACT.get(name, functools.partial(_numpys, name))
            law = laws.drawn(result, lambda: values(*given, **more))
        self.laws.note(result, law)

    def _element(self, function: Any, order: int, result: Any, /, *args: Any, **named: Any) -> None:
        if type(result) is not self._array or (result is args[0] and function is _same):
            return
        inputs = args[:1] if function is _same else args[: getattr(function, "nin", 3)]
        written = result is args[0] or "out" in named or (function is not _same and len(args) > len(inputs))  # fmt: skip
        law, parts = None, []
        for part in inputs[::order]:
            view = self.laws.values(part) if isinstance(part, self._array) else part
            if not isinstance(view, _PARTS):
                break
            parts.append(view)
        else:
            before = None
            if function is _same and result.ndim != args[0].ndim:
                before = args[0].shape
            if "where" not in named and any(isinstance(part, laws.View) for part in parts):
                law = laws.computed(result, function, parts, before)
        if written or (law is not None and result.base is None):
            self.laws.note(result, law)
            if law is not None and not law.drawn:
                show(result, self.laws.of(result).first()[0])  # type: ignore[union-attr]

    def _reduces(self, function: Any, result: Any, this: Any, axis: Any = None, *args: Any, **named: Any) -> None:  # fmt: skip
        view = self.laws.values(this) if type(this) is type(result) is self._array else None
        if view is None or (function is np.all and result.size == 1):
            return
        if result.size > 1:
            if isinstance(axis, tuple) and len(axis) == 1:
                (axis,) = axis
            if isinstance(axis, int) and result.base is None:
                self.laws.note(result, laws.reduced(result, function, view, axis % this.ndim))
            return
        sample = view.first()
        if sample.size:
            value = function(sample)
            if function in (np.sum, np.count_nonzero):
                value = value * (this.size / sample.size)
            elif function is np.prod:
                return
            self._assumptions.add("value", "an expected value, by the law of its draws", user_line())  # fmt: skip
            show(result, value)
            law = laws.drawn(result, lambda: np.full(laws.SAMPLES, value))
            law.drawn = frozenset()
            self.laws.note(result, law)

    def _orders(self, result: Any, of: Any) -> None:
        law = None
        if result.ndim == 1:
            law = laws.Law(result, None)
            law.whole = True
            if of is not None:
                view = self.laws.values(of)
                law = None if view is None else laws.shuffled(result, view, law, True)
        self.laws.note(result, law)

    def _assigns(self, array: Any) -> None:
        original = array.__setitem__

        def assigned(this: Any, index: Any, value: Any) -> laws.Law | None:
            view = self.laws.values(this)
            mask = self.laws.values(index) if isinstance(index, array) else None
            if view is None or mask is None or not isinstance(value, _SIMPLE):
                return None
            return laws.computed(this, np.where, [mask, value, view]) if index.shape == this.shape else None  # fmt: skip

        @functools.wraps(original)
        def setitem(this: Any, index: Any, value: Any) -> None:
            # CuPy's own writing forgets the law.
            law = assigned(this, index, value) if self.laws else None
            original(this, index, value)
            if self.laws:
                self.laws.note(this, law)

        array.__setitem__ = setitem

    def _chooses(self, result: Any, this: Any, index: Any) -> None:
        if isinstance(index, tuple) and len(index) == 1:
            (index,) = index
        if not isinstance(index, self._array) or type(result) is not self._array or not result.ndim:
            return
        view, where = self.laws.values(this), self.laws.of(index)
        if view is None or where is None:
            return
        law, order = None, where.law
        if index.dtype.kind == "b":
            law = laws.chosen(result, view, where)
        elif order.chosen_by is not None:
            law = laws.chosen(result, view, order.chosen_by)
        elif index.ndim == 1 and (
            (order.draw is not None and not order.drawn & view.law.drawn) or (order.draw is None and index.size == len(this))
        ):  # fmt: skip
            law = laws.shuffled(result, view, order, order.draw is None)
        self.laws.note(result, law)

    def _takes(self, result: Any, this: Any, indices: Any, axis: Any = None, out: Any = None) -> None:  # fmt: skip
        if out is not None:
            self.laws.note(out, None)
        elif axis == 0 or (axis is None and this.ndim == 1):
            self._chooses(result, this, indices)

    def _compresses(self, result: Any, this: Any, condition: Any, axis: Any = None, out: Any = None) -> None:  # fmt: skip
        self._takes(result, this, condition, axis, out)

    def _finds(self, result: Any, this: Any) -> None:
        view = self.laws.values(this)
        if view is not None and this.ndim == 1 and this.dtype.kind == "b":
            found = result[0] if result[0].base is None else result[0].base
            law = laws.Law(found, None)
            law.chosen_by = view
            self.laws.note(found, law)

    def _counts_different(self, result: Any, *args: Any, **named: Any) -> None:
        if self.different is not None and result.size == self.different[0]:
            show(result, self.different[1] - 1, result.size - 1)

    def _kernels(self, cupy: Any) -> None:
        """What the script's own kernels write has no law."""
        forget = self.forget

        class ElementwiseKernel(cupy.ElementwiseKernel):  # type: ignore[misc]
            def __call__(self, *args: Any, **named: Any) -> Any:
                if is_user_file(sys._getframe(1).f_code.co_filename):
                    forget(args[self.nin :])
                return super().__call__(*args, **named)

        class RawKernel(cupy.RawKernel):  # type: ignore[misc]
            def __call__(self, grid: Any, block: Any, args: Any, *more: Any, **named: Any) -> Any:
                if is_user_file(sys._getframe(1).f_code.co_filename):
                    forget(args)
                return super().__call__(grid, block, args, *more, **named)

        class RawModule(cupy.RawModule):  # type: ignore[misc]
            def get_function(self, name: str) -> Any:
                return _Function(super().get_function(name), lambda _, grid, block, args, *__, **___: forget(args), draws)  # fmt: skip

        draws = self
        cupy.ElementwiseKernel, cupy.RawKernel, cupy.RawModule = ElementwiseKernel, RawKernel, RawModule  # fmt: skip

    def forget(self, arrays: Any) -> None:
        """Something has written to them."""
        for one in arrays:
            if isinstance(one, self._array):
                self.laws.note(one, None)


class _Function:
    """A function of CuPy's for each element, or a kernel of the script's."""

    def __init__(self, original: Any, then: Callable[..., None], draws: Draws) -> None:
        vars(self).update(_original=original, _then=then, _draws=draws)

    def __call__(self, *args: Any, **named: Any) -> Any:
        result = self._original(*args, **named)
        if self._draws.laws:
            try:
                self._then(result, *args, **named)
            except Exception:
                self._draws.forget([result, *args])
        return result

    def at(self, array: Any, *args: Any) -> Any:
        """In place."""
        self._draws.forget([array])
        return self._original.at(array, *args)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)


def show(array: Any, value: Any, index: int = 0) -> None:
    """What the program reads from `array`, as long as it lives: the next array in this place reads as zeros again."""
    # A virtual GPU's memory is address space of the process.
    place = array.data.ptr + index * array.itemsize
    data = np.asarray(np.rint(value) if array.dtype.kind in "iu" else value, array.dtype).tobytes()
    ctypes.memmove(place, data, len(data))
    weakref.finalize(array, ctypes.memset, place, 0, len(data)).atexit = False


def _same(values: Any) -> Any:
    return values


_PARTS_OF_ONE = (np.arange(laws.SAMPLES) + laws.generator(0).rand(laws.SAMPLES)) / laws.SAMPLES


def _whole(low: int, high: int | None = None, endpoint: bool = False) -> Any:
    low, high = (0, low) if high is None else (low, high)
    return low + np.floor(_PARTS_OF_ONE * (high + endpoint - low)).astype(np.int64)


def _uniform(low: float = 0.0, high: float = 1.0) -> Any:
    return low + (high - low) * _PARTS_OF_ONE


@functools.lru_cache(None)
def _normal(loc: float = 0.0, scale: float = 1.0) -> Any:
    return np.array([*map(statistics.NormalDist(loc, scale).inv_cdf, _PARTS_OF_ONE)])


def _exponential(scale: float = 1.0) -> Any:
    return -scale * np.log(_PARTS_OF_ONE)


def _numpys(name: str, *given: Any, **more: Any) -> Any:
    many = getattr(laws.generator(0), name)(*given, **more, size=16 * laws.SAMPLES)
    return np.sort(many)[8::16]


_EXACT: dict[str, Callable[..., Any]] = {
    "random": _uniform, "random_sample": _uniform, "rand": _uniform, "uniform": _uniform, "randn": _normal, "standard_normal": _normal,
    "normal": _normal, "randint": _whole, "integers": _whole, "exponential": _exponential, "standard_exponential": _exponential,
}  # fmt: skip
"""What is drawn most. For the others NumPy draws."""
