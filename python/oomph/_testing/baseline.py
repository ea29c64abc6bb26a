"""The peaks of tests as a file keeps them, and what has grown since."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from oomph._oomph import format_size

FORMAT = "oomph.tests/1"
"""The version of the file. Another one is refused."""

MOST_PLACES = 20
"""Places that are kept of each test."""

_SHOWN = 5
_LINE = re.compile(r":\d+")


class Baseline:
    """What tests held when the file was written: `tests` has, by its id, each one's peak and places."""

    def __init__(self, gpu: str) -> None:
        """Of no test yet, on `gpu`."""
        self.gpu = gpu
        self.tests: dict[str, dict[str, Any]] = {}

    @classmethod
    def read(cls, path: str, gpu: str) -> Baseline:
        """Read a file. Raise `ValueError` with one line if it is none, another version's or another GPU's."""
        try:
            with open(path, encoding="utf-8") as file:
                values = json.load(file)
            found = values["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} is not a baseline of oomph ({type(error).__name__}: {error}): expected a file of "
                f"--oomph-baseline. Write it anew with --oomph-update-baseline"
            ) from None
        if found != FORMAT:
            raise ValueError(
                f"{path} is a baseline of the version {found}; expected {FORMAT}. Write it anew with --oomph-update-baseline"
            )
        if values.get("gpu") != gpu:
            raise ValueError(
                f"{path} is a baseline of {values.get('gpu')}, and the tests run on {gpu}. Name that GPU, another file, "
                "or write it anew with --oomph-update-baseline"
            )
        baseline = cls(gpu)
        tests = values.get("tests")
        if not isinstance(tests, dict) or not all(
            isinstance(test, dict) and isinstance(test.get("peak_bytes"), int)
            for test in tests.values()
        ):
            raise ValueError(
                f"{path} is damaged: expected peak_bytes of each test. Write it anew with --oomph-update-baseline"
            )
        baseline.tests = tests
        return baseline

    def add(self, test: str, peak: int, places: list[dict[str, Any]]) -> None:
        """Keep the peak of a test in bytes, and its largest places."""
        kept = [
            dict(bytes=p["bytes"], place=p["stack"], category=p["category"], module=p.get("module", ""))
            for p in places[:MOST_PLACES]
        ]  # fmt: skip
        self.tests[test] = dict(peak_bytes=peak, places=kept)

    def write(self, path: str) -> None:
        """Write the file, its tests in the order of their names."""
        text = json.dumps(
            dict(format=FORMAT, gpu=self.gpu, tests=dict(sorted(self.tests.items()))),
            indent=1,
        )
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path + ".part", "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(path + ".part", path)

    def growth(self, test: str, peak: int, tolerance: float) -> int:
        """How much higher than before the peak of a test is, in bytes; 0 within `tolerance` (a part of it), and if it is new."""
        before = self.tests.get(test)
        if before is None or peak <= before["peak_bytes"] * (1 + tolerance):
            return 0
        return int(peak - before["peak_bytes"])

    def changes(self, test: str, places: list[dict[str, Any]]) -> list[str]:
        """Lines for people: the places that hold more now, the most first. Places are the same if only their line numbers differ."""
        table: dict[tuple[Any, ...], list[Any]] = {}
        for side, rows in enumerate((self.tests[test]["places"], places)):
            for row in rows:
                place = row.get("stack", row.get("place", []))
                module = row.get("module") or ""
                key = (*(_LINE.sub("", frame) for frame in place), row["category"], module)
                entry = table.setdefault(key, [0, 0, place, row["category"], module])
                entry[side] += row["bytes"]
                entry[2] = place
        grown = sorted((e for e in table.values() if e[1] > e[0]), key=lambda e: e[0] - e[1])
        return [
            f"{'+' + format_size(now - before):>11}  {describe(place, category, module)}"
            for before, now, place, category, module in grown[:_SHOWN]
        ]


def describe(place: list[str], category: str, module: str) -> str:
    """A place for people: the user's line, what it holds, the module."""
    where = place[0] if place else "(no Python line)"
    if module:
        return f"{where}  {category} of {module}"
    # Outside models nothing tells what a tensor is for.
    return where
