"""oomph fits a PyTorch job into the GPU you have.

Names load when they are first used: `import oomph` imports neither torch nor any other slow
module, so the command stays fast, and so does pytest, which imports the plugin wherever oomph is installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oomph._apply import NotApplied, apply
    from oomph._oomph import __version__
    from oomph._training.batch_size_finder import BatchSizes, find_batch_size
    from oomph._training.errors import (
        CannotFit,
        MemoryNotRecovered,
        PeerFailed,
        Refused,
        StateLost,
        is_out_of_memory,
    )
    from oomph._training.ladder import CheckpointBlocks, Ladder, Rung
    from oomph._training.loss_weights import samples, tokens
    from oomph._training.memory_model import MemoryModel
    from oomph._training.memory_sampler import MemoryBatchSampler, SampleCost, measure_sample_cost
    from oomph._training.release import Freed, free
    from oomph._training.train_step import StepReport, TrainStep, train_step
    from oomph._training.watch import Watch, memory_line, watch

_HOMES = {
    "_apply": ("NotApplied", "apply"),
    "_oomph": ("__version__",),
    "_training.errors": (
        "CannotFit", "MemoryNotRecovered", "PeerFailed", "Refused", "StateLost", "is_out_of_memory",
    ),
    "_training.batch_size_finder": ("BatchSizes", "find_batch_size"),
    "_training.memory_model": ("MemoryModel",),
    "_training.release": ("Freed", "free"),
    "_training.ladder": ("CheckpointBlocks", "Ladder", "Rung"),
    "_training.memory_sampler": ("MemoryBatchSampler", "SampleCost", "measure_sample_cost"),
    "_training.train_step": ("StepReport", "TrainStep", "train_step"),
    "_training.watch": ("Watch", "memory_line", "watch"),
    "_training.loss_weights": ("samples", "tokens"),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "BatchSizes",
    "CannotFit",
    "CheckpointBlocks",
    "Freed",
    "Ladder",
    "MemoryBatchSampler",
    "MemoryModel",
    "MemoryNotRecovered",
    "NotApplied",
    "PeerFailed",
    "Refused",
    "Rung",
    "SampleCost",
    "StateLost",
    "StepReport",
    "TrainStep",
    "Watch",
    "__version__",
    "apply",
    "find_batch_size",
    "free",
    "is_out_of_memory",
    "load_ipython_extension",
    "measure_sample_cost",
    "memory_line",
    "samples",
    "tokens",
    "train_step",
    "watch",
]


def load_ipython_extension(shell: Any) -> None:
    """Register `%%oomph`; IPython calls this for `%load_ext oomph`."""
    from oomph import notebook

    notebook.load(shell)


def __getattr__(name: str) -> Any:
    """Load `name` from its module on first use."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'oomph' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"oomph.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
