"""What differs between releases of torch: the one place where oomph's Python side knows of it.

Each difference is a name that torch has from some release on. Whether the torch of this process has it is looked up,
because builds backport and leave out; `make test-matrix` compares what is looked up with the releases below.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any, NamedTuple


class Feature(NamedTuple):
    """A name that not every release has."""

    since: tuple[int, int]
    """The first release that has it."""
    module: str
    path: str
    """Where it is: in a module, a name with dots."""
    without: str
    """What oomph does where it is absent."""
    parameter: str = ""
    """Not the name itself but a parameter of that function."""


FEATURES = {
    "library_fallback": Feature(
        (2, 5), "torch.library", "Library.fallback",
        "each operator gets an entry of its own when it is first looked up",
    ),
    "hooks_with_kwargs": Feature(
        (2, 8), "torch.nn.modules.module", "register_module_forward_hook",
        "the keyword arguments of an outermost call are read from the frame that calls the hook",
        "with_kwargs",
    ),
    "memory_metadata": Feature(
        (2, 10), "torch._C", "_cuda_setMemoryMetadata",
        "the names of stack frames carry the labels of allocations",
    ),
}  # fmt: skip


@functools.cache
def find(feature: str) -> Any:
    """The object of that name, None where this torch has none."""
    return look_up(FEATURES[feature])


def look_up(feature: Feature) -> Any:
    """The object itself, None where this torch has none."""
    try:
        found = importlib.import_module(feature.module)
        for name in feature.path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError):
        return None
    if feature.parameter and feature.parameter not in inspect.signature(found).parameters:
        return None
    return found


def has(feature: str) -> bool:
    """Whether this torch has it."""
    return find(feature) is not None
