"""Directories that runs leave. `oomph run` removes nothing from one without the mark.

`crates/oomph-job/src/run_directory.rs` says which files in it are oomph's own.
"""

from __future__ import annotations

import os

_MARKER = ".oomph-run"


def make_directory(path: str | os.PathLike[str]) -> None:
    """Make a directory, if there is none, and mark it as one that oomph made."""
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, _MARKER), "w"):
        pass
