"""Writes what steps of each job do on a virtual GPU: `python bench/time/logs.py OUT.jsonl.gz [--width N] [--only JOB …]`.

One line for each job of `../gpu/step_time.py`: `set`, `case`, and `work`, the log that `oomph-clock` prices
(`crates/oomph-clock/examples/price.rs` reads the same). They are made once; the clocks are then fitted without running jobs.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
OOMPH = [sys.executable, "-m", "oomph"]
sys.path.insert(0, str(HERE.parent / "gpu"))


def log(job, gpu):
    """The log of one job, or why there is none."""
    subject, case = job
    own = (HERE / "jobs" / f"{subject}.py").exists()
    jobs = HERE / "jobs" if own else HERE.parent / "accuracy" / "jobs"
    with tempfile.TemporaryDirectory() as place:
        words = [*OOMPH, "run", "-q", "--no-measure", "--gpu", gpu, "--out", f"{place}/run", f"{subject}.py", case]  # fmt: skip
        done = subprocess.run(words, cwd=jobs, capture_output=True, text=True, check=False)
        record = Path(place) / "run" / "record.json"
        row = dict(set=subject, case=case)
        if not record.exists():
            return dict(row, error=(done.stdout + done.stderr)[-800:])
        return dict(row, work=json.loads(record.read_text()).get("work"))


def main():
    """Log all jobs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--width", type=int, default=os.cpu_count())
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    import step_time

    sys.path[:0] = [str(step_time.JOBS), str(step_time.MORE)]
    jobs = [job for job in step_time.listed() if not options.only or job[1] in options.only]
    with ThreadPoolExecutor(options.width) as pool, gzip.open(options.out, "wt") as out:
        for row in pool.map(lambda job: log(job, options.gpu), jobs):
            out.write(json.dumps(row, separators=(",", ":")) + "\n")
            out.flush()
            print(row["set"], row["case"], "failed" if "error" in row else "", flush=True)


if __name__ == "__main__":
    main()
