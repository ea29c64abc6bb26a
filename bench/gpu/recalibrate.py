"""What real runs teach of a machine: `python bench/gpu/recalibrate.py OUT [--gpu h100-sxm] [--jobs …]`.

Each of some jobs of `jobs/steady.py` runs on a virtual GPU of this kind, then on this machine's own, and `oomph calibrate` learns
from both, each time with an empty cache. OUT gets `recalibrate.jsonl`, a line for each job: the estimate before (`time`), `paced` (what
steps took between waits for the GPU, and until they were issued), `free_s` (the median step without waits), and `learned` (what
oomph keeps); and `works.jsonl.gz`, what the steps of each do, to price them again. At the end the first job is run
by `oomph run --fit`, which learns by itself, and the last one's estimate is printed with what that taught.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = str(HERE / "jobs" / "steady.py")
OOMPH = [sys.executable, "-m", "oomph"]


def call(*words, cache):
    """Runs oomph; what it printed."""
    began = time.monotonic()
    done = subprocess.run(
        [*OOMPH, *map(str, words)], capture_output=True, text=True,
        env=dict(os.environ, XDG_CACHE_HOME=str(cache)),
    )  # fmt: skip
    print(
        f"{time.monotonic() - began:6.1f} s, {done.returncode}: oomph {' '.join(map(str, words[:3]))} …",
        flush=True,
    )
    if done.returncode:
        print(done.stdout[-600:], done.stderr[-600:], flush=True)
    return done.stdout + done.stderr


def read(path):
    """A JSON document, empty if it is not there."""
    return json.loads(path.read_text()) if path.exists() else {}


def kept(cache):
    """What oomph keeps of this machine."""
    return [read(path) for path in (cache / "oomph" / "hosts").glob("*.json")]


def main():
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpu", default="h100-sxm")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument(
        "--jobs", nargs="*", default=["bert", "launch_bound", "gpt2", "resnet152", "swin_t"]
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    place = args.out / "runs"
    empty = place / "cache"

    def rehearse(job):
        call(
            "run",
            "-q",
            "--no-measure",
            "--gpu",
            args.gpu,
            "--steps",
            4,
            "--out",
            place / f"{job}-virtual",
            SCRIPT,
            job,
            "--steps",
            4,
            cache=empty,
        )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(rehearse, args.jobs))
    with (
        open(args.out / "recalibrate.jsonl", "w") as file,
        gzip.open(args.out / "works.jsonl.gz", "wt") as works,
    ):
        for job in args.jobs:
            virtual, real, cache = (
                place / f"{job}-{what}" for what in ("virtual", "real", "cache")
            )
            call("run", "-q", "--out", real, SCRIPT, job, "--steps", args.steps, cache=empty)
            call("calibrate", "--run", real, "--rehearsed", virtual, cache=cache)
            record, summary = read(real / "record.json"), read(virtual / "summary.json")
            ends = record.get("step_ends", [])
            gaps = sorted(b - a for a, b in zip(ends, ends[1:]))
            estimate = summary.get("time") or {}
            estimate.pop("parts", None)
            row = dict(
                job=job, time=estimate, paced=record.get("paced"), learned=kept(cache),
                free_s=gaps[len(gaps) // 2] / 1e6 if gaps else None, date=record.get("date"),
                gpu=[device["name"] for device in record.get("devices", [])],
            )  # fmt: skip
            file.write(json.dumps(row) + "\n")
            file.flush()
            rehearsed = read(virtual / "record.json")
            works.write(
                json.dumps(
                    dict(
                        job=job,
                        work=rehearsed.get("work"),
                        input_ns=rehearsed.get("facts", {}).get("loading_ns"),
                    )
                )
                + "\n"
            )
    cache, last = place / "fit-cache", args.jobs[-1]
    print(
        call(
            "run",
            "--fit",
            "--out",
            place / "fit",
            SCRIPT,
            args.jobs[0],
            "--steps",
            args.steps,
            cache=cache,
        )[-2500:]
    )
    print(call("calibrate", "--show", cache=cache))
    print(
        call(
            "run",
            "--no-measure",
            "--gpu",
            args.gpu,
            "--steps",
            4,
            "--out",
            place / "after",
            SCRIPT,
            last,
            "--steps",
            4,
            cache=cache,
        )[-1500:]
    )


if __name__ == "__main__":
    main()
