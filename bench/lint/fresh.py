"""Counts how each rule of `oomph lint` was judged in repositories that it had not seen: the figures of `docs/rules/README.md`.

    python bench/lint/fresh.py    # prints CODE, how many findings were right, how many were judged

A finding counts as its reader judged it first. Of the sets forty and newer those count that a rule of today still reports, for that
rule (`now` in `results/kept.tsv`; `rule` is what was judged). If these are fewer than ten, all of the older sets are added.
`uncounted_50.tsv` is not among them: whether set fifty counts is for a person to decide (README.md).
"""

import csv
from collections import defaultdict
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
ENOUGH = 10
NEW = 40
FIRST_UNSEEN = 9  # Earlier rounds were judged by who wrote the rules.


def rows(name: str) -> "list[dict[str, str]]":
    with (RESULTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def judged() -> "dict[str, dict[int, list[bool]]]":
    """By rule and set: whether each finding was right."""
    kept = defaultdict(list)
    for row in rows("kept.tsv"):
        kept[row["rule"], row["file"], row["line"]].append(row["now"])
    found: "dict[str, dict[int, list[bool]]]" = defaultdict(lambda: defaultdict(list))
    for row in rows("checked.tsv"):
        number = row["round"]
        if number.isdigit() and int(number) >= FIRST_UNSEEN:
            found[row["rule"]][int(number)].append(row["verdict"] == "right")
    for path in sorted(RESULTS.glob("judged_*.tsv")):
        for row in rows(path.name):
            number = int(row["set"].rstrip("r"))
            now = [row["rule"]] if number < NEW else kept[row["rule"], row["file"], row["line"]]
            for rule in now:
                found[rule][number].append(row["verdict"] == "right")
    return found


def figures() -> "dict[str, tuple[int, int]]":
    """By rule: how many findings were right, and how many were judged."""
    counted = {}
    for rule, sets in judged().items():
        new = [right for number, verdicts in sets.items() if number >= NEW for right in verdicts]
        old = [right for number, verdicts in sets.items() if number < NEW for right in verdicts]
        verdicts = new if len(new) >= ENOUGH else new + old
        counted[rule] = (sum(verdicts), len(verdicts))
    return counted


if __name__ == "__main__":
    for rule, (right, all_of_them) in sorted(figures().items()):
        print(rule, right, all_of_them)
