"""Runs on a virtual GPU what `run.py` ran on a real one, and compares: `python bench/jax/virtual.py TRUTH.jsonl OUT.jsonl`.

Each start of the truth is repeated under `oomph run --gpu`, with the same variables. `--table` only prints the table of two files.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
OOMPH = Path(sys.executable).with_name("oomph")
SECONDS = 400


def read(path):
    """The starts that a file of results has."""
    return [row for row in map(json.loads, open(path)) if "job" in row]


def key(row):
    """Which start it is: the job, and the share of its peak that it got."""
    return row["job"], row.get("share")


def start(script, row, gpu):
    """One start: what the job and `oomph run` say of it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        result = Path(place, "result.json")
        command = [OOMPH, "run", "--gpu", gpu, "--quiet", "--out", Path(place, "run"), "--json", result, HERE / script, row["job"]]  # fmt: skip
        # Some of the jobs set variables themselves: JAX reads them when it is imported.
        done = subprocess.run(
            command, env={**os.environ, **row["variables"]}, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        line = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
        found = (
            json.loads(line)
            if line.startswith("{")
            else {"job": row["job"], "end": done.stderr[-500:]}
        )
        text = result.read_text() if result.exists() else "{}"
        summary = json.loads(text.replace(f"{HERE.parents[1]}/", ""))
    said = {name: summary.get(name) for name in ("verdict", "basis", "peak", "oom", "failure", "assumptions")}  # fmt: skip
    more = {name: row[name] for name in ("share", "variables") if name in row}
    return (
        found
        | more
        | {
            "oomph": said,
            "status": done.returncode,
            "seconds": round(time.monotonic() - began, 1),
        }
    )


def figures(row):
    """Peak in use, the most in the pool, what the device gave: in bytes, None where the job does not say."""
    stats = row.get("stats", {})
    return stats.get("peak_bytes_in_use"), stats.get("peak_pool_bytes"), row.get("device_used")


def table(truth, found):
    """Prints a row for each job: GPU and virtual GPU, in MiB, and how far apart they are."""

    def cell(real, here):
        if real is None or here is None:
            return "–" if real == here else f"{real} / {here}"
        off = f"{100 * (here - real) / real:+.2f} %" if real else ""
        return f"{here / 2**20:,.1f} | {off}"

    known = {key(row): row for row in found}
    print("| job | share | in use | off | pool | off | device | off | verdict | end on the GPU |")
    for row in truth:
        here = known.get(key(row))
        if here is None:
            continue
        cells = " | ".join(cell(a, b) for a, b in zip(figures(row), figures(here), strict=True))
        share = row.get("share", "")
        print(f"| {row['job']} | {share} | {cells} | {here['oomph']['verdict']} | {row['end'][:60]} |")  # fmt: skip


def about(gpu, script):
    """What a file of results says of itself first."""
    return {"about": {
        "machine": f"no GPU: oomph run --gpu {gpu}", "python": platform.python_version(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python", script, *sys.argv[1:]]),
    }}  # fmt: skip


def main():
    """All starts of the truth, one after another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("truth")
    parser.add_argument("out")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--only", default="")
    parser.add_argument("--limits", action="store_true", help="only the starts with a limit")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--file", default="jobs.py", help="the file with the jobs")
    given = parser.parse_args()
    truth = read(given.truth)
    if given.table:
        return table(truth, read(given.out))
    with open(given.out, "w", buffering=1) as out:
        print(json.dumps(about(given.gpu, "bench/jax/virtual.py")), file=out)
        for row in truth:
            if given.only and row["job"] not in given.only.split(","):
                continue
            if given.limits and "share" not in row:
                continue
            try:
                found = start(given.file, row, given.gpu)
            except subprocess.TimeoutExpired:
                found = {**{n: row[n] for n in ("job", "share", "variables") if n in row}, "end": f"not done after {SECONDS} s"}  # fmt: skip
            print(json.dumps(found), file=out)


if __name__ == "__main__":
    main()
