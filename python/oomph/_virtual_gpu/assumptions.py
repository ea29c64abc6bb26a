"""What a run rests on without having computed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from oomph._user_code import user_line

RULES = {"half": 0.5, "all": 1.0, "none": 0.0}
"""How many elements of an unknown comparison are assumed to be true."""


class Assumptions:
    """The assumptions of a run: counted by kind, with the first location."""

    def __init__(self) -> None:
        """Start with none."""
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self.on_read: Callable[[str], None] | None = None
        """Called when the program reads a value that nobody computed, before it has it, with what it got."""

    def read(self, what: str) -> None:
        """The program reads a value that nobody computed."""
        self.add("value", what, user_line())
        if self.on_read is not None:
            self.on_read(what)

    def forget(self) -> None:
        """Start with none again."""
        self._counts.clear()

    def add(self, kind: str, what: str, where: str) -> None:
        """Count one more assumption `what` of `kind` at `where` (file:line)."""
        self._counts[kind, what, where] += 1

    def as_list(self) -> list[dict[str, Any]]:
        """All assumptions: `kind`, `what`, `location` (file:line or ""), `count`."""
        return [
            dict(kind=kind, what=what, location=where, count=count)
            for (kind, what, where), count in self._counts.items()
        ]
