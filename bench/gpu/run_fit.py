"""`oomph run --fit` on a real GPU where other processes hold memory: `python run_fit.py OUT.jsonl`.

For each job of `bench/fit/jobs`, with as much of the GPU filled by another process as leaves the given share of the
job's own need: `oomph run --fit` twice, the second time from the cache, and a third time while the other process takes more as soon as
the plan is chosen, so that `--squeeze` of what the plan needs is left and the net has to hold the job. A line for each run: what was free, planned
and really used (as the driver sees it, polled beside the run), the time of a step against the plain job's, and how long it
took until the script began. The plain job and the job without a plan in what is left come first.

To try it without a GPU: `--virtual rtx-3060`, where `--memory` stands for the filler. `--tiny` takes one job and few steps.
Needs the installed command; the cache is one of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOBS = HERE.parent / "fit" / "jobs"
OOMPH = os.environ.get("OOMPH", Path(sys.executable).parent / "oomph")
CASES = [("gpt2", 0.5), ("bert_base", 0.5), ("resnet50", 0.75)]
"""A job, and the share of its own need that is left free."""
FILLER = """
import sys, time, torch
torch.cuda.init()
torch.empty(1, device="cuda")
free, _ = torch.cuda.mem_get_info()
take = free - int(sys.argv[1])
held = torch.empty(max(take, 0), dtype=torch.uint8, device="cuda")
print(torch.cuda.mem_get_info()[0], flush=True)
more = []
for line in sys.stdin:
    free, _ = torch.cuda.mem_get_info()
    more = [torch.empty(max(free - int(line), 0), dtype=torch.uint8, device="cuda")]
"""
"""Holds all but so many bytes of the GPU until its input ends; each line of it says how many are left from then on."""


class Filler:
    """A process that leaves `free` bytes of the GPU to others."""

    def __init__(self, free):
        self.free = free

    def __enter__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", FILLER, str(self.free)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.left = int(self.process.stdout.readline())
        return self

    def leave(self, free):
        """Leave only so many bytes from now on."""
        print(int(free), file=self.process.stdin, flush=True)

    def __exit__(self, *error):
        self.process.communicate("")


class Poll(threading.Thread):
    """The least that the driver has free, asked some times a second."""

    def __init__(self):
        super().__init__(daemon=True)
        self.least, self.before, self._over = None, self.ask(), threading.Event()

    @staticmethod
    def ask():
        """Free bytes of the first GPU."""
        done = subprocess.run(
            ["nvidia-smi", "-i", "0", "--query-gpu=memory.free", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return int(done.stdout.split()[0]) << 20

    def run(self):
        """Ask until it is over."""
        while not self._over.wait(0.1):
            free = self.ask()
            self.least = free if self.least is None else min(self.least, free)

    def used(self):
        """The most that others than those before took."""
        self._over.set()
        self.join()
        return None if self.least is None else self.before - self.least


def run(place, script, steps, options, environment, poll, chosen=None):
    """One `oomph run`; what it said and measured. `chosen` is called when it has said its plan."""
    result = Path(place) / "result.json"
    result.unlink(missing_ok=True)
    polled = Poll() if poll else None
    if polled:
        polled.start()
    began = time.time()
    errors = []
    with tempfile.TemporaryFile("w+") as out, subprocess.Popen(
        [OOMPH, "run", "--json", result, *options, script, "--steps", str(steps)],
        cwd=place, stdout=out, stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:  # fmt: skip
        for line in process.stderr:
            if chosen and line.startswith("oomph: with "):
                chosen()
            errors.append(line.rstrip("\n"))
        status = process.wait()
        out.seek(0)
        error = "\n".join(errors) or out.read()
    found = json.loads(result.read_text()) if result.exists() else {}
    said = [line for line in errors if line.startswith(("oomph:", "note:"))]
    return dict(
        status=status, wall_s=time.time() - began, said=said,
        script_s=found.get("seconds"), verdict=found.get("verdict"), peak=found.get("peak"),
        fit=found.get("fit"), driver_used_bytes=polled.used() if polled else None,
        gpu=found.get("gpu"), versions=found.get("versions"),
        error=None if found and not status else error[-1500:],
    )  # fmt: skip


def kept_runs(cache):
    """What the cache has of real runs: the newest of each job."""
    files = Path(cache).glob("oomph/plans/*.json")
    return [run for file in files for run in json.loads(file.read_text())["runs"][-1:]]


def measure(job, share, arguments, keep):
    """The plain job, then what is left of the GPU: without a plan, with `--fit`, and again from the cache."""
    script, virtual = JOBS / f"{job}.py", arguments.virtual
    steps = 4 if arguments.tiny else arguments.steps
    gpu = ["--gpu", virtual] if virtual else []
    with tempfile.TemporaryDirectory() as place:
        cache = os.path.join(place, "cache")
        environment = dict(os.environ, XDG_CACHE_HOME=cache)
        plain = run(place, script, steps, ["--fit", *gpu], environment, not virtual)
        plain_runs = kept_runs(cache)
        keep(dict(job=job, kind="plain", runs=plain_runs, **plain))
        if not plain_runs:
            return
        leave = int(plain_runs[0]["used_bytes"] * share)
        step = plain_runs[0]["step_seconds"]

        def limited(kind, fit, chosen=None):
            options = ["--fit"] if fit else ["--no-measure"]
            if virtual:
                options += [*gpu, "--memory", str(leave)]
            before = kept_runs(cache)
            made = run(place, script, steps, options, environment, not virtual, chosen)
            runs = [found for found in kept_runs(cache) if found not in before]
            measured = runs[0]["step_seconds"] if runs else None
            ratio = measured / step if measured and step else None
            keep(
                dict(
                    job=job,
                    share=share,
                    left_bytes=leave,
                    kind=kind,
                    runs=runs,
                    ratio=ratio,
                    **made,
                )
            )

        def all_of_them():
            limited("unplanned", False)
            limited("fit", True)
            limited("fit again", True)

        if virtual:
            all_of_them()
        else:
            with Filler(leave) as filler:
                keep(dict(job=job, kind="filler", left_bytes=filler.left, asked_bytes=leave))
                all_of_them()
                needs = kept_runs(cache)[-1]["used_bytes"] * arguments.squeeze
                limited("fit squeezed", True, lambda: filler.leave(needs))


def say(line):
    """The line for people."""
    text = f"{line['job']:10} {line['kind']:10}"
    for run in line.get("runs") or []:
        planned, used = run["planned"]["used_bytes"] / 2**30, run["used_bytes"] / 2**30
        text += f" planned {planned:.2f} used {used:.2f} GiB, step {(run['step_seconds'] or 0) * 1e3:.1f} ms"
    if line.get("driver_used_bytes"):
        text += f", by the driver {line['driver_used_bytes'] / 2**30:.2f} GiB"
    if line.get("ratio"):
        text += f", {line['ratio']:.2f} times"
    if "status" in line:
        text += f", status {line['status']}, {line['wall_s']:.0f} s: {'; '.join(line['said'][-1:])}"
    return text


def main():
    """Measure the jobs until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--virtual", help="a virtual GPU instead of this machine's")
    parser.add_argument("--steps", type=int, default=60, help="of each run")
    parser.add_argument("--most", type=float, default=480, help="seconds after which no job begins")
    parser.add_argument("--job", nargs="*", help="only these")
    parser.add_argument(
        "--squeeze",
        type=float,
        default=0.8,
        help="share of what the plan needs that is left in the third run",
    )
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    began = time.time()

    def keep(line):
        with arguments.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(say(line), flush=True)

    cases = [case for case in CASES if not arguments.job or case[0] in arguments.job]
    for job, share in cases[-1:] if arguments.tiny else cases:
        if time.time() - began > arguments.most:
            print("the time is up")
            return
        measure(job, share, arguments, keep)


if __name__ == "__main__":
    main()
