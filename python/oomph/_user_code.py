"""Which code is the user's own: no library's, not Python's, not oomph's."""

from __future__ import annotations

import os
import sys
from types import FrameType

_LIBRARY_PARTS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
OWN_DIRECTORY = os.path.dirname(os.path.abspath(__file__)) + os.sep
"""Where oomph's own files are."""
_STDLIB = os.path.dirname(os.__file__) + os.sep


def is_user_file(name: str) -> bool:
    """Whether a source file is the user's own. Compiled libraries name theirs as they were built."""
    return not (
        name.startswith((OWN_DIRECTORY, _STDLIB, "<"))
        or name.endswith((".pyx", ".pxd", ".pxi"))
        or any(part in name for part in _LIBRARY_PARTS)
    )


def user_line(thread: int | None = None) -> str:
    """`file:line` of the innermost frame that is the user's own code, or "".

    Of the thread that calls, or of another one by its identifier.
    """
    frame: FrameType | None
    frame = sys._getframe(1) if thread is None else sys._current_frames().get(thread)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
