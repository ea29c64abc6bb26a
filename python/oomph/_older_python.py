"""What Python 3.9's standard library lacks: modules import it from here, also over the builtin."""

from __future__ import annotations

import builtins
import itertools
import os
import sys

if sys.version_info >= (3, 10):
    zip = builtins.zip
    pairwise = itertools.pairwise
    orig_argv = sys.orig_argv
else:
    with open("/proc/self/cmdline", "rb") as _file:
        orig_argv = [os.fsdecode(word) for word in _file.read().split(b"\0")[:-1]]

    def zip(*iterables, strict=False):
        """As `builtins.zip` of Python 3.10."""
        return _equally_long(iterables) if strict else builtins.zip(*iterables)

    def _equally_long(iterables):
        missing = object()
        for items in itertools.zip_longest(*iterables, fillvalue=missing):
            if any(item is missing for item in items):
                raise ValueError("zip() arguments have different lengths")
            yield items

    def pairwise(iterable):
        """As `itertools.pairwise` of Python 3.10."""
        first, second = itertools.tee(iterable)
        next(second, None)
        return builtins.zip(first, second)
