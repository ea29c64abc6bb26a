"""Compares the time that `oomph run` prints with what the H200 took: `python bench/time/run.py [--only NAME…] [--held-out]`.

What the H200 took is `results/h200_jobs.jsonl` (`../gpu/step_time.py`). For each job: the estimate, the median step on the GPU
between synchronisations, and whether that lies within the interval.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
OOMPH = str(Path(sys.executable).parent / "oomph")


def estimate(subject: str, case: str) -> dict | None:
    """`time` of a run of one job on the virtual H200."""
    own = subject in ("held_out", "further")
    jobs = HERE / "jobs" if own else HERE.parent / "accuracy" / "jobs"
    with tempfile.TemporaryDirectory() as place:
        out = os.path.join(place, "run.json")
        command = [
            OOMPH,
            "run",
            "-q",
            "--no-measure",
            "--gpu",
            "h200",
            "--json",
            out,
            "--out",
            f"{place}/run",
        ]
        subprocess.run([*command, f"{subject}.py", case], cwd=jobs, capture_output=True)
        return json.loads(Path(out).read_text())["time"] if os.path.exists(out) else None


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*")
    parser.add_argument(
        "--held-out", action="store_true", help="the jobs that nothing was tuned on"
    )
    args = parser.parse_args()
    off, inside = [], 0
    with open(HERE / "results" / "h200_jobs.jsonl") as file:
        measured = [json.loads(line) for line in file]
    for row in measured:
        if "step_s" not in row or (row["set"] == "held_out") is not args.held_out:
            continue
        if args.only and row["case"] not in args.only:
            continue
        found = estimate(row["set"], row["case"])
        if not found:
            print(f"{row['case']:32} no time", flush=True)
            continue
        truth = statistics.median(row["step_s"])
        off.append(found["step_seconds"] / truth - 1)
        within = found["low"] <= truth <= found["high"]
        inside += within
        print(
            f"{row['case']:32} {found['step_seconds'] * 1e3:8.2f} ms, measured {truth * 1e3:8.2f} {off[-1]:+7.1%}"
            f" {'' if within else 'outside '}{found['bound']}",
            flush=True,
        )
    errors = sorted(map(abs, off))
    if errors:
        print(
            f"{len(errors)} jobs: median {statistics.median(errors):.1%}, nine of ten below "
            f"{errors[int(len(errors) * 0.9)]:.1%}, {inside / len(errors):.0%} inside their interval"
        )


if __name__ == "__main__":
    main()
