"""What the clock adds to a dry run: `python bench/time/cost.py WITH WITHOUT --out OUT.json [--times N] [--only JOB …]`.

WITH and WITHOUT are two builds of the library that plays the GPU, which nothing switches: the tree as it is
(`cargo build --profile PROFILE -p oomph-vgpu`, `liboomph_vgpu.so`), and the same with `note` and `operator` of `crates/oomph-vgpu/src/work.rs` that return at once. Each takes
the place of the installed library in turn, in alternating order, so that a machine that grows slower favours neither; WITH stays.
Run it on a machine that does nothing else.
"""

import argparse
import datetime
import importlib.util
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOBS = Path(__file__).resolve().parent / "jobs"
USUAL = [
    "convnext_small_b24_bf16",
    "albert_mlm_b16_256",
    "efficientnet_b1_b48_bf16",
    "translator_b24",
    "resnext101_b16_bf16",
    "noise_predictor_2048",
]


def use(library, place):
    """Put a library in the place of the installed one. A new file, as others may have the old one open or linked."""
    beside = place.with_suffix(".new")
    shutil.copy(library, beside)
    beside.replace(place)


def run(job):
    """Wall-clock and processor seconds of one dry run; a run without a result ends the program."""
    with tempfile.TemporaryDirectory() as folder:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        words = [sys.executable, "-m", "oomph", "run", "-q", "--no-measure", "--gpu", "h200", "--out", f"{folder}/run", "fresh2.py", job, "--steps", "12"]  # fmt: skip
        done = subprocess.run(words, cwd=JOBS, capture_output=True, text=True, check=False)
        wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        if not (Path(folder) / "run" / "summary.json").exists():
            sys.exit(f"{job}: {(done.stdout + done.stderr)[-800:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return dict(wall_s=wall, cpu_s=cpu)


def main():
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("libraries", nargs=2, metavar=("WITH", "WITHOUT"))
    parser.add_argument("--out", required=True)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=USUAL)
    options = parser.parse_args()
    libraries = dict(zip(("with", "without"), options.libraries, strict=True))
    package = Path(importlib.util.find_spec("oomph").origin).parent
    place = package / "_vgpu" / "libcuda.so.1"
    rows = []
    try:
        for job in options.only:
            runs = {"with": [], "without": []}
            for turn in range(options.times):
                for which in sorted(runs, reverse=turn % 2 == 1):
                    use(libraries[which], place)
                    runs[which].append(run(job))
            more = {
                kind: statistics.median(one[kind] for one in runs["with"])
                / statistics.median(one[kind] for one in runs["without"])
                - 1
                for kind in ("wall_s", "cpu_s")
            }
            rows.append(dict(job=job, runs=runs, more=more))
            print(f"{job:28} wall {more['wall_s']:+6.1%}  cpu {more['cpu_s']:+6.1%}", flush=True)
    finally:
        use(libraries["with"], place)
    for kind in ("wall_s", "cpu_s"):
        print(f"{kind}: {statistics.median(row['more'][kind] for row in rows):+.1%} in the median")
    where = dict(date=datetime.date.today().isoformat(), machine=platform.machine(), cores=os.cpu_count(), python=platform.python_version())  # fmt: skip
    Path(options.out).write_text(json.dumps(dict(where, jobs=rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
