"""Which code is the user's own: no library's, not Python's, not oomph's."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

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


_OPTIMIZED = 1
"""`inspect.CO_OPTIMIZED`: the code of a function, whose variables are in no dictionary."""


def local(frame: FrameType, name: str, otherwise: Any = None) -> Any:
    """The value of a variable in a running frame; `otherwise` if it has none of that name.

    Before Python 3.13, `f_locals` leaves a dictionary in a function's frame, which would keep alive what the script lets go.
    """
    names = frame.f_locals
    value = names.get(name, otherwise)
    # The frame's reference, this function's and the argument's: nobody else looks at it, such as a script that calls `locals`.
    if (
        sys.version_info < (3, 13)
        and frame.f_code.co_flags & _OPTIMIZED
        and sys.getrefcount(names) <= 3
    ):
        names.clear()
    return value
