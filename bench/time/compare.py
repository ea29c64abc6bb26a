"""Steps that were measured beside what the clocks say: `python bench/time/compare.py HOST LOGS JOBS PROFILES [GPU]`.

HOST is the factor of the host (`oomph calibrate`), or `beside`: what the small models say that ran between the steps of each job. LOGS
is what `logs.py` wrote, JOBS and PROFILES what `../gpu/step_time.py` did, on an H200 unless GPU says otherwise. A measured step that
calls so many times the modules of the clock's is that many of these: it has so many updates. Build `cargo build --example price -p oomph-clock` before.
"""

import gzip
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from compare_kinds import PRICE

DEFAULT = Path(__file__).resolve().parent / "results" / "h100_again_calibration.jsonl"


def lines(path):
    """The rows of a file."""
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as file:
        return [json.loads(line) for line in file]


def summary(title, errors):
    """Median and ninth decile of the errors' sizes, and the median error."""
    sizes = sorted(map(abs, errors))
    print(
        f"{title:8} {len(errors):3}: median {statistics.median(sizes):.1%}, nine of ten below "
        f"{sizes[int(0.9 * len(sizes))]:.1%}, bias {statistics.median(errors):+.1%}"
    )


def seconds(measured):
    """What the small models took, in the median of several times."""
    took = [{name: sum(one["parts"]) for name, one in times.items()} for times in measured]
    return {name: statistics.median(one[name] for one in took) for name in took[0]}


def beside(row, default):
    """The factor of the host beside a job."""
    return statistics.median(s / default[name] for name, s in seconds(row["calibration"]).items())


def updates(row, work):
    """How many of the clock's steps a measured one is."""
    table = work["table"]
    called = [
        table[line][1]
        for count, step in work["steps"][1:] or work["steps"]
        for line in [line for line in step if table[line][0] == "modules"] * count
    ]
    usual = statistics.median_low(called) if called else 0
    return max(round(row["modules"] / usual), 1) if usual else 1


def main():
    """Compare."""
    default = seconds([row["steps"] for row in lines(str(DEFAULT)) if "steps" in row])
    host, logs, jobs, profiles, gpu = [*sys.argv[1:], "h200"][:5]
    measured = {row["case"]: row for row in lines(jobs) if "step_s" in row}
    busy = {row["case"]: row["busy_us"] / 1e6 for row in lines(profiles)}
    steps, kernels, hosts, inside, waiting = [], [], [], 0, 0
    for row in lines(logs):
        case = row["case"]
        if case not in measured or not row.get("work"):
            print(case, "no measurement or log")
            continue
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(dict(work=row["work"]), file)
            file.flush()
            factor = f"{beside(measured[case], default):.3f}" if host == "beside" else host
            done = subprocess.run([PRICE, "--host", factor, gpu, file.name], capture_output=True, text=True, check=True)  # fmt: skip
        told = json.loads(done.stdout)
        step, issue = (statistics.median(measured[case][name]) for name in ("step_s", "issue_s"))
        count = updates(measured[case], row["work"])
        told.update(
            (name, told[name] * count) for name in ("step", "low", "high", "device", "host")
        )
        hit = told["low"] <= step <= told["high"]
        inside += hit
        steps.append(told["step"] / step - 1)
        kernels.append(told["device"] / busy[case] - 1)
        if busy[case] < 0.8 * issue:
            hosts.append(told["host"] / issue - 1)
        # The step takes what the host needs to issue it, and the GPU less.
        waiting += busy[case] < issue and issue > 0.9 * step
        print(
            f"{case:30} step {step * 1e3:7.2f} est {told['step'] * 1e3:7.2f} {steps[-1]:+6.0%}{'' if hit else ' OUT'} | "
            f"kernels {busy[case] * 1e3:7.2f} est {told['device'] * 1e3:7.2f} {kernels[-1]:+6.0%} | "
            f"issue {issue * 1e3:7.2f} host est {told['host'] * 1e3:7.2f} {told['bound']}"
        )
    summary("steps", steps)
    summary("kernels", kernels)
    summary("host", hosts)
    print(f"inside the interval {inside} of {len(steps)}; {waiting} wait for the host")


if __name__ == "__main__":
    main()
