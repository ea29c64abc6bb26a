"""Measures the jobs on the GPU of this machine: `python measure.py --out FILE [--parallel 8] [--seconds 480]`.

Every job runs in a process of its own, with the environment that it asks for and with empty caches of compiled
kernels. FILE gets one JSON line for each, as soon as it is done; a job that fails has `error` and stops no other.
What the allocator holds is counted for each process, so jobs may run side by side. `used_outside` and the times
are valid only with `--serial` (one job at a time), for the subjects or jobs that `--only` names; so is the
lateness of streams.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SUBJECTS = (
    "compiled",  # The longest jobs first.
    "inductor",
    "generation",
    "audio",
    "science",
    "optimizers",
    "allocator",
    "mixed",
    "detection",
    "streams",
    "decoding",
    "sound",
    "fields_and_graphs",
    "varied",
    "updates",
    "pools",
    "overlap",
    "autograd_tricks",
)


def listed(subject):
    """The jobs of one subject, in order."""
    done = subprocess.run(
        [sys.executable, f"{subject}.py", "--list"], cwd=HERE, capture_output=True, text=True
    )
    if done.returncode:
        print(f"{subject}: {done.stderr[-1500:]}", file=sys.stderr, flush=True)
    return [dict(json.loads(line), subject=subject) for line in done.stdout.splitlines()]


def measure(job, limit):
    """Runs one job; its record, whatever happened."""
    began = time.perf_counter()
    out = {}
    with tempfile.TemporaryDirectory() as caches:
        env = dict(
            os.environ,
            TORCHINDUCTOR_CACHE_DIR=caches + "/inductor",
            TRITON_CACHE_DIR=caches + "/triton",
            **job["env"],
        )
        command = [sys.executable, f"{job['subject']}.py", job["case"]]
        try:
            done = subprocess.run(
                command, cwd=HERE, env=env, capture_output=True, text=True, timeout=limit
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            out = json.loads(lines[-1]) if lines else {}
            if not lines:
                out["error"] = f"exit status {done.returncode}: {done.stderr[-2000:]}"
        except subprocess.TimeoutExpired:
            out["error"] = f"not done after {limit:.0f} s"
    return dict(dict(case=job["case"]), **out, seconds=round(time.perf_counter() - began, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--serial", action="store_true")
    parser.add_argument("--seconds", type=float, default=480, help="for all jobs together")
    parser.add_argument("--most", type=float, default=150, help="seconds for one job")
    parser.add_argument("--only", nargs="*", default=SUBJECTS, help="subjects or jobs")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    parallel = 1 if args.serial else args.parallel
    with concurrent.futures.ThreadPoolExecutor(len(SUBJECTS)) as pool:
        found = [job for jobs in pool.map(listed, SUBJECTS) for job in jobs]
    jobs = [job for job in found if {job["case"], job["subject"]} & set(args.only)]
    print(f"{len(jobs)} jobs, {parallel} at a time", flush=True)
    with open(os.path.join(HERE, "split.json")) as file:
        tuned = json.load(file)["tune"]
    lock, skipped, failed = threading.Lock(), [], []

    def work(job):
        left = end - time.monotonic()
        if left < 10:
            skipped.append(job["case"])
            return
        row = measure(job, min(args.most, left))
        row.update(
            set=job["subject"],
            role="tune" if f"{job['subject']}/{job['case']}" in tuned else "held_out",
            measured=time.strftime("%Y-%m-%d"),
            parallel=parallel,
        )
        with lock:
            if "error" in row:
                failed.append(job["case"])
            with open(args.out, "a") as file:
                file.write(json.dumps(row) + "\n")
            gib = row.get("max_reserved", 0) / 2**30
            last = row.get("error", "").strip().splitlines()[-1:]
            print(f"{row['case']:42} {row['seconds']:6.1f} s {gib:7.2f} GiB", *last, flush=True)

    with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
        list(pool.map(work, jobs))
    print(f"{len(failed)} failed: {failed}; {len(skipped)} not run: {skipped}", flush=True)


if __name__ == "__main__":
    main()
