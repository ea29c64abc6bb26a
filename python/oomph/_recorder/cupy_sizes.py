"""Sizes and values that a script gets from CuPy's arrays, which no kernel has computed: by a rule, and said with their lines.

CuPy counts on the GPU what a mask chooses, and reads the count. As no kernel runs, that read is answered here.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from oomph._recorder.cupy_draws import Draws
from oomph._user_code import is_user_file, user_line
from oomph._virtual_gpu.assumptions import RULES, Assumptions
from oomph._virtual_gpu.library import library

_READS = ("item", "__bool__", "__int__", "__float__", "__index__")
"""By these a program gets one value, and may branch on it or take it for a size."""
_READ = (
    "the script read a value of CuPy's, which oomph does not compute: it got zero, or what was "
    "copied there, and a check passed"
)

_LARGEST = "bincount counts up to the largest value, which is not computed: up to zero"


class Sizes:
    """Answers what CuPy's arrays ask the GPU for by masks, by the rule `unknown`."""

    def __init__(self, unknown: str, assumptions: Assumptions) -> None:
        """`assumptions` collects what had to be answered."""
        self._unknown, self._assumptions = unknown, assumptions
        self.draws = Draws(assumptions)

    def watch(self, array: Any) -> None:
        """Of CuPy's class `array`."""
        for name in ("__getitem__", "__setitem__"):
            self._answer(array, name, lambda this, index, *_: self._of_index(array, index))
        self._answer(array, "nonzero", lambda this: [self._of_mask(this)])
        self._answer(array, "compress", lambda this, condition, *_: [self._of_mask(condition)])
        for name in _READS:
            if hasattr(array, name):
                self._says(array, name)

    def watch_search(self, search: Any) -> None:
        """Of CuPy's module of searches."""
        self._answer(search, "argwhere", lambda mask: [self._of_mask(mask)])

    def watch_counts(self, histogram: Any) -> None:
        """Of CuPy's module of histograms, which has as many counts as the largest value says."""
        original = histogram.bincount

        @functools.wraps(original)
        def bincount(*args: Any, **named: Any) -> Any:
            if not self.draws.known(args[0]):
                self._assumptions.add("shape", _LARGEST, user_line())
            return original(*args, **named)

        histogram.bincount = bincount

    def _of_mask(self, mask: Any) -> int:
        expected = self.draws.expected(mask)
        if expected is not None:
            return expected
        self._assumptions.add(
            "shape", f"a size depends on unknown values: rule {self._unknown!r}", user_line()
        )
        return int(mask.size * RULES[self._unknown])

    def _of_index(self, array: Any, index: Any) -> list[int]:
        """How many elements each mask in an index chooses."""
        parts = index if isinstance(index, tuple) else (index,)
        masks = [p for p in parts if getattr(getattr(p, "dtype", None), "kind", "") == "b"]
        # The host's own are known.
        return [self._of_mask(m) if isinstance(m, array) else int(m.sum()) for m in masks if m.ndim]

    def _answer(self, owner: Any, name: str, counts: Callable[..., list[int]]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def answered(*args: Any, **named: Any) -> Any:
            known = counts(*args)
            if not known:
                return original(*args, **named)
            gpu = library()
            gpu.oomph_vgpu_begin(0, 0)
            for count in known:
                gpu.oomph_vgpu_answer(count)
            try:
                return original(*args, **named)
            finally:
                gpu.oomph_vgpu_end()

        setattr(owner, name, answered)

    def _says(self, array: Any, name: str) -> None:
        original = getattr(array, name)

        @functools.wraps(original)
        def read(this: Any, *args: Any) -> Any:
            # CuPy's own reads are checks, or follow such a mask.
            if is_user_file(sys._getframe(1).f_code.co_filename) and not self.draws.known(this):
                self._assumptions.add("value", _READ, user_line())
            return original(this, *args)

        setattr(array, name, read)
