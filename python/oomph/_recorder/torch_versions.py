"""Which releases of torch the virtual GPU was proved with, and whether one of them is installed.

Torch is not imported for it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys

from oomph._protocol import Refused

SUPPORTED = {(2, 8): 12, (2, 11): 13, (2, 15): 13}
"""Supported releases of torch and the CUDA version of each: those that passed
every job of `make test-matrix`.

Patch releases (2.8.1) contain only fixes and count as their release; pre-releases do not."""


def _installed_torch() -> tuple[str, str | None]:
    """Version and CUDA version of the installed torch, read from its files without importing it."""
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
    return (version.group(1) if version else "unknown"), (cuda.group(1) if cuda else None)


def is_supported(version: str, cuda: str | None) -> bool:
    """Whether the virtual GPU supports this torch and the CUDA that it was built for."""
    # 2.8.0, 2.8.1+cu128; not 2.8.0a0+git, 2.8.0.dev20250601.
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?(\+.*)?", version)
    if match is None or cuda is None:
        return False
    return str(SUPPORTED.get((int(match[1]), int(match[2])))) == cuda.split(".")[0]


def check_torch(virtual: bool, unsupported: bool) -> tuple[str, str | None]:
    """Version and CUDA of the installed torch; raises `Refused` if the virtual GPU does not support it."""
    version, cuda = _installed_torch()
    if not virtual:
        return version, cuda
    if cuda is None:
        raise Refused(
            f"torch {version} in {sys.prefix} is built without CUDA. The virtual GPU needs the CUDA "
            "build (the default of `pip install torch` on Linux); no driver or GPU is needed for it."
        )
    if not is_supported(version, cuda) and not unsupported:
        known = ", ".join(
            f"{major}.{minor} with CUDA {of}" for (major, minor), of in SUPPORTED.items()
        )
        raise Refused(
            f"the virtual GPU does not support torch {version} with CUDA {cuda}. Supported are "
            f"torch {known}. Install one of them, or run anyway with "
            "--unsupported; the result then says so."
        )
    return version, cuda
