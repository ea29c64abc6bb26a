"""Lines of oomph's own on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap

_LEAST_OF_TERMINALS = 80
"""Columns that any terminal has."""
_MOST = 110


def say(text: str) -> None:
    """Print `oomph: text` to stderr: as wide as the terminal, and whole for programs, unless `COLUMNS` asks for
    less than any terminal has."""
    print(folded(f"oomph: {text}"), file=sys.stderr, flush=True)


def folded(line: str) -> str:
    """`line` broken at spaces where it is wider than what shows it. Paths and other long words stay whole."""
    width = _width()
    if width is None or len(line) <= width:
        return line
    return textwrap.fill(
        line,
        min(width, _MOST),
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _width() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    asked = int(columns) if columns.isdecimal() else None
    shown = None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if sys.stderr.isatty():
            shown = os.get_terminal_size(sys.stderr.fileno()).columns
    if shown is None and (asked is None or asked >= _LEAST_OF_TERMINALS):
        return None
    return max(asked or shown or _LEAST_OF_TERMINALS, 40)
