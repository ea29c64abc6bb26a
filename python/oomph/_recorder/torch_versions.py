"""Which releases of torch the virtual GPU was proved with, and what happens with others.

Torch is not imported for it.
"""

from __future__ import annotations

import enum
import importlib.util
import os
import re
import sys
from typing import NamedTuple

from oomph._protocol import Refused

PROVED = {(2, minor): 12 if minor < 11 else 13 for minor in range(4, 16)}
"""Releases of torch that passed every job of `make test-matrix`, and the CUDA version of each as PyPI has it.

Patch releases (2.8.1) contain only fixes and count as their release; pre-releases do not."""

OLDEST = (2, 4)
OLDEST_CUDA = 12
"""The virtual GPU has the structures of CUDA 12 and 13."""


class Standing(enum.Enum):
    """What is known of a torch."""

    PROVED = "proved"
    UNPROVED = "unproved"
    """It runs, with a warning, if the probe passes: a newer release, a pre-release, or one built for another CUDA."""
    TOO_OLD = "too old"


class Torch(NamedTuple):
    """An installed torch."""

    version: str
    cuda: str | None
    """None: built without CUDA."""

    @property
    def standing(self) -> Standing:
        """What is known of it."""
        # 2.8.0, 2.8.1+cu128; 2.8.0a0+git and 2.8.0.dev20250601 are pre-releases.
        match = re.match(r"(\d+)\.(\d+)(\.\d+)?(\+.*)?(.*)", self.version)
        if match is None or self.cuda is None:
            return Standing.TOO_OLD
        release, cuda = (int(match[1]), int(match[2])), int(self.cuda.split(".")[0])
        if not match[5] and PROVED.get(release) == cuda:
            return Standing.PROVED
        if release < OLDEST or cuda < OLDEST_CUDA:
            return Standing.TOO_OLD
        return Standing.UNPROVED


def installed_torch() -> Torch:
    """The installed torch, read from its files without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise Refused(
            f"torch is not installed in {sys.prefix}. Install it there (pip install torch), or run "
            "oomph from the environment that has it."
        )
    path = os.path.join(next(iter(spec.submodule_search_locations)), "version.py")
    try:
        with open(path) as file:
            text = file.read()
    except OSError as error:
        raise Refused(
            f"cannot read {path}: {error}. Is this a complete installation of torch?"
        ) from None
    version = re.search(r"^__version__ = '([^']+)'", text, re.M)
    cuda = re.search(r"^cuda[^=\n]*= '([^']+)'", text, re.M)
    return Torch(version.group(1) if version else "unknown", cuda.group(1) if cuda else None)


def check_torch(virtual: bool, unsupported: bool) -> Torch:
    """The installed torch; raises `Refused` if the virtual GPU cannot run it."""
    torch = installed_torch()
    if not virtual:
        return torch
    if torch.cuda is None:
        raise Refused(
            f"torch {torch.version} in {sys.prefix} is built without CUDA. The virtual GPU needs the CUDA "
            "build (the default of `pip install torch` on Linux); no driver or GPU is needed for it."
        )
    if torch.standing is Standing.TOO_OLD and not unsupported:
        raise Refused(
            f"the virtual GPU does not support torch {torch.version} with CUDA {torch.cuda}. It needs torch "
            f"{OLDEST[0]}.{OLDEST[1]} or later with CUDA {OLDEST_CUDA} or later. Install one, or run anyway with "
            "--unsupported; the result then says so."
        )
    return torch


def warning(torch: Torch) -> str:
    """What is said of a torch that passed the probe only."""
    newest = max(PROVED)
    return (
        f"torch {torch.version} with CUDA {torch.cuda} is not among the versions that oomph was tested with "
        f"({OLDEST[0]}.{OLDEST[1]} to {newest[0]}.{newest[1]}); a short probe of it passed"
    )


def missing_library(torch: Torch, error: BaseException) -> str | None:
    """What `error` is for want of, if it ended the import of torch: one of NVIDIA's libraries, in a line."""
    found, traceback = _NOT_FOUND.match(str(error)), error.__traceback__
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") != "torch":
        traceback = traceback.tb_next
    if found is None or traceback is None:
        return None
    name = found[1] + (f" for CUDA {torch.cuda}" if torch.cuda else "")
    release = torch.version.partition("+")[0]
    return (
        f"torch {torch.version} in {sys.prefix} needs {name}, which is in none of the packages here. "
        f'Install what is missing: pip install "torch=={release}".'
    )


_NOT_FOUND = re.compile(r"(lib\w+\.so)\S*(?: not found in the system path|: cannot open)")
"""As torch says it, and as the loader does."""
