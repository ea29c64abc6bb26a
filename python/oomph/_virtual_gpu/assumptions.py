"""What a run rests on without having computed it."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Assumptions:
    """The assumptions of a run: counted by kind, with the first location."""

    def __init__(self) -> None:
        """Start with none."""
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def add(self, kind: str, what: str, where: str) -> None:
        """Count one more assumption `what` of `kind` at `where` (file:line)."""
        self._counts[kind, what, where] += 1

    def as_list(self) -> list[dict[str, Any]]:
        """All assumptions: `kind`, `what`, `location` (file:line or ""), `count`."""
        return [
            dict(kind=kind, what=what, location=where, count=count)
            for (kind, what, where), count in self._counts.items()
        ]
