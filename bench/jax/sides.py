"""Finds on a virtual GPU in how much memory a job just runs, and in how much it just does not: `python bench/jax/sides.py OUT.jsonl`.

Each start is a row of OUT; the two nearest to each other have a `side`, `runs` or `fails`, and the `limit` in bytes. `run.py --rows OUT.jsonl` repeats these on a real GPU.
The jobs are those that end alike at 1.05 and 0.7 times their peak.
"""

import argparse
import json
import time
from pathlib import Path

from virtual import about, start

# Bytes in which a job fails, and in which it runs, to begin with: the second as a card ran it, the first a guess that is tried.
JOBS = {
    "transformer": (2_400_000_000, 7_340_032_000),
    "cudnn_attention": (1_800_000_000, 5_463_080_960),
    "convolutions": (1_200_000_000, 3_460_300_800),
    "per_example_gradients": (1_000_000_000, 3_051_356_160),
    "flax_vit": (1_700_000_000, 5_207_228_416),
    "grows_by_doubling": (18_396_217_344, 36_000_000_000),
    "async_allocator": (3_000_000_000, 7_600_000_000),
}
TOTAL = 150_109_880_320
"""Bytes of the H200."""


def variables(job, limit):
    """How a job gets a limit. The allocator of CUDA has none: the rest of the GPU is taken before."""
    if job == "async_allocator":
        return {"LEAVE_FREE": str(limit), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    return {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{limit / TOTAL:.6f}"}


def search(job, near, until, out):
    """The two starts of `job` that are on different sides and within `near` of each other, or as near as the time allows."""
    fails, runs = JOBS[job]
    found = {}

    def ends(limit):
        row = {"job": job, "variables": variables(job, limit)}
        row = start("jobs.py", row, "h200") | {"limit": limit}
        print(json.dumps(row), file=out)
        side = "runs" if row["end"] == "ran" else "fails"
        found[side] = row | {"side": side}
        return side

    while ends(fails) == "runs":
        fails, runs = fails // 2, fails
    while runs / fails > near and time.monotonic() < until:
        middle = int((runs * fails) ** 0.5)
        if ends(middle) == "runs":
            runs = middle
        else:
            fails = middle
    if "runs" not in found:
        ends(runs)
    for row in found.values():
        print(json.dumps(row), file=out)


def main():
    """All jobs, one after another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(JOBS))
    parser.add_argument("--near", type=float, default=1.1)
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    until = time.monotonic() + given.seconds
    with open(given.out, "a", buffering=1) as out:
        print(json.dumps(about("h200", "bench/jax/sides.py")), file=out)
        for job in given.only.split(","):
            search(job, given.near, until, out)


if __name__ == "__main__":
    main()
