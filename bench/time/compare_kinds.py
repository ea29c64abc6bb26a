"""Kernel time of each kind of operator, measured and priced: `python bench/time/compare_kinds.py MEASURED.jsonl.gz [--gpu GPU] RUN…`.

MEASURED is what `kinds.py --out` wrote; each RUN is the folder of `oomph run --gpu GPU --out RUN bench/time/kinds.py SECTION`, and is named
after the section; a number behind it is what `--first` was. Build
`cargo build --example price -p oomph-clock` before.
"""

import gzip
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

PRICE = Path(__file__).resolve().parents[2] / "target" / "debug" / "examples" / "price"
GAP_US = 0.9


def main():
    """Compare."""
    with gzip.open(sys.argv[1], "rt") as file:
        measured = [json.loads(line) for line in file]
    gpu, runs = "h200", sys.argv[2:]
    if runs[0] == "--gpu":
        gpu, runs = runs[1], runs[2:]
    off = []
    for run in runs:
        record = Path(run) / "record.json"
        work = json.loads(record.read_text())["work"]
        told = subprocess.run([PRICE, "--lines", gpu, record], capture_output=True, text=True, check=True)  # fmt: skip
        us = json.loads(told.stdout)["us"]
        steps = [step for count, step in work["steps"] for _ in range(count)]
        section, first = re.fullmatch(r"([a-z]+)(\d*)", Path(run).name).groups()
        own = [row for row in measured if row["section"] == section]
        if first:
            own = own[int(first) :][: len(steps) - 1]
        for row, step in zip(own, steps[-len(own) :], strict=True):
            kernels = [us[line] - GAP_US for line in step if us[line] > 0]
            error = sum(kernels) / row["us"] - 1
            off.append(abs(error))
            print(
                f"{section:9} {row['case']:38} measured {row['us']:9.1f} us in {len(row['kernels']):4}, "
                f"priced {sum(kernels):9.1f} in {len(kernels):4} {error:+7.0%}"
            )
    off.sort()
    print(f"{len(off)} kinds: median {statistics.median(off):.1%}, nine of ten below {off[int(0.9 * len(off))]:.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
