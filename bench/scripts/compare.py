"""Compares two results of run.py, such as a real GPU's with the virtual one's: compare.py REAL VIRTUAL."""

import json
import sys
from pathlib import Path


def main() -> None:
    real, virtual = (
        {
            row["name"]: row
            for line in Path(name).read_text().splitlines()
            if (row := json.loads(line))
        }
        for name in sys.argv[1:3]
    )
    print(
        "| script | allocated, real | virtual | reserved, real | virtual | used, real | virtual |"
    )
    print("| --- |" + " ---: |" * 6)
    for name in (name for name in real if name in virtual):
        cells = []
        for part in ("allocated_bytes", "reserved_bytes", "used_bytes"):
            a, b = (rows[name].get("peak", {}).get(part, 0) for rows in (real, virtual))
            off = f" ({(b - a) / a:+.2%})" if a and a != b else ""
            cells += [f"{a / 2**20:,.1f}", f"{b / 2**20:,.1f}{off}"]
        print(f"| `{name}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
