"""Which CuPy is installed. CuPy is not imported for it."""

from __future__ import annotations

import contextlib
import importlib.metadata


def installed_cupy() -> int | None:
    """The release of CUDA that the installed CuPy is for; None without one. CuPy is not imported for it."""
    for major in (13, 12):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(f"cupy-cuda{major}x")
            return major
    return None
