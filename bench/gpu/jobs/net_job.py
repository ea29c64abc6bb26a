"""One of the jobs of `net_jobs.py` as a script: `python net_job.py NAME [--steps N] [--small]`."""

import argparse

from net_jobs import JOBS

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=JOBS)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    step, _ = JOBS[options.name](options.small)
    for _ in range(options.steps):
        step()
