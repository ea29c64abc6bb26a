"""Runs the JAX jobs, each in a process of its own, several times: `python bench/jax/run.py OUT.jsonl [--starts N] [--limits]`.

`--file` names the file with the jobs. With `--limits` each is started twice more, in a pool of 1.05 times and of 0.7 times what it used at most;
`--peaks FILE` starts each only so, by what it used at most in results that are there. `--rows FILE` repeats what a virtual GPU says is just enough and
just too little (`sides.py`), some beside each other where each has a pool of its own; so does `--fraction`, in which the jobs are started with one share of the GPU
each. With `--tuned`, a row has what XLA tried and chose.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "gpu")]
SECONDS = 150


def start(script, name, **variables):
    """One start of a job: what it says of itself."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, HERE / script, name], env={**os.environ, **variables}, capture_output=True, text=True,
            timeout=SECONDS,
        )  # fmt: skip
        line = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
        found = (
            json.loads(line) if line.startswith("{") else {"job": name, "end": done.stderr[-500:]}
        )
    except subprocess.TimeoutExpired:
        found = {"job": name, "end": f"not done after {SECONDS} s"}
    return found | {"seconds": round(time.monotonic() - began, 1), "variables": variables}


def tuning(script, name, **variables):
    """One start of a job, and what XLA tried for it and chose."""
    from xla_products import dumping, tuned

    with tempfile.TemporaryDirectory() as place:
        files = f"{place}/logs.txt", f"{place}/results.txt"
        found = start(script, name, **variables, **dumping(*files))
        return found | {"variables": variables, "tuned": tuned(*files)}


def repeat(rows, script, one, beside, until, out):
    """Starts again what `rows` are: those with a pool beside each other, the others alone."""

    def again(row):
        if time.monotonic() < until:
            found = one(script, row["job"], **row["variables"])
            more = {name: row[name] for name in ("limit", "side") if name in row}
            print(json.dumps(found | more), file=out)

    with ThreadPoolExecutor(beside) as pool:
        list(pool.map(again, [row for row in rows if "LEAVE_FREE" not in row["variables"]]))
    for row in rows:
        if "LEAVE_FREE" in row["variables"]:
            again(row)


def main():
    """All jobs, one after another: the GPU has one at a time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--starts", type=int, help="of each: three, with --rows or --fraction one")
    parser.add_argument("--limits", action="store_true")
    parser.add_argument("--file", default="jobs.py")
    parser.add_argument("--only", default="")
    parser.add_argument("--peaks", help="results, perhaps of another GPU: only starts with a limit")
    parser.add_argument("--total", type=int, help="bytes of this GPU, with --peaks")
    parser.add_argument("--rows", help="what sides.py wrote: only those starts")
    parser.add_argument("--fraction", help="the share of the GPU that each start gets")
    parser.add_argument(
        "--beside", type=int, default=1, help="starts at a time, with --rows or --fraction"
    )
    parser.add_argument("--tuned", action="store_true", help="with what XLA tried, the same")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="begin nothing new after so long"
    )
    given = parser.parse_args()

    script = given.file
    names = [
        n
        for n in importlib.import_module(Path(script).stem).JOBS
        if not given.only or n in given.only.split(",")
    ]
    until = time.monotonic() + given.seconds
    smi = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
        capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    about = {
        "machine": smi, "python": platform.python_version(), "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python", "bench/jax/run.py", *sys.argv[1:]]),
    }  # fmt: skip
    with open(given.out, "w", buffering=1) as out:
        print(json.dumps({"about": about}), file=out)
        if given.rows or given.fraction:
            rows = (
                [row for row in map(json.loads, open(given.rows)) if "side" in row]
                if given.rows
                else [
                    {"job": n, "variables": {"XLA_PYTHON_CLIENT_MEM_FRACTION": given.fraction}}
                    for n in names
                ]
            )
            rows = [row for row in rows if row["job"] in names] * (given.starts or 1)
            one = tuning if given.tuned else start
            return repeat(rows, script, one, given.beside, until, out)
        for number in range(given.starts or 3):
            peaks = {}
            if given.peaks:
                rows = map(json.loads, open(given.peaks))
                rows = [row for row in rows if "job" in row and "share" not in row]
                peaks = {row["job"]: (row.get("stats", {}).get("peak_bytes_in_use"), given.total) for row in rows}  # fmt: skip
            for name in () if given.peaks else names:
                if time.monotonic() > until:
                    return
                found = start(script, name)
                print(json.dumps(found), file=out)
                peaks[name] = (
                    found.get("stats", {}).get("peak_bytes_in_use"),
                    found.get("device_total"),
                )
            for name in names if (given.limits or given.peaks) and number == 0 else ():
                peak, total = peaks[name]
                if not peak:
                    continue
                for share in (1.05, 0.7):
                    if time.monotonic() > until:
                        return
                    fraction = f"{share * peak / total:.6f}"
                    found = start(script, name, XLA_PYTHON_CLIENT_MEM_FRACTION=fraction)
                    print(json.dumps(found | {"share": share}), file=out)


if __name__ == "__main__":
    main()
