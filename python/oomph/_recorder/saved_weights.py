"""Weights that a script on a virtual GPU saves with safetensors go where its other files go.

safetensors (0.8) writes a file of its own beside the one that is asked for, and renames that by a call of the kernel, past the C library.
So the library that keeps such files apart (`crates/oomph-overlay`) does not see it, and the script would fail.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from oomph import _protocol
from oomph._import_hooks import on_import


def watch() -> None:
    """From the import of safetensors on."""
    if os.environ.get(_protocol.OVERLAY):
        for name in ("safetensors.torch", "safetensors.numpy"):
            on_import(name, _through_the_c_library)


def _through_the_c_library(module: Any) -> None:
    original = module.serialize_file

    @functools.wraps(original)
    def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            with open(filename, "wb") as file:
                filename = os.readlink(f"/proc/self/fd/{file.fileno()}")
        except OSError:
            pass  # safetensors says so in its own words
        return original(tensors, filename, *args, **kwargs)

    module.serialize_file = serialize_file
