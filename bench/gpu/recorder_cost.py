"""What `oomph run` costs a job on a GPU: the script alone and under oomph, in alternating processes.

    python bench/gpu/recorder_cost.py --out bench/gpu/results/NAME.json [--plans DIRECTORY]

Each job of `jobs/steady.py` makes 200 steps in each process. What is compared is the median of the second half
of them, and the first tenth tells what recording costs while it lasts. DIRECTORY holds plans, JOB.toml: for these
jobs `plan` (`oomph run --plan`) is compared with `levers`, the same plan without a recorder (`oomph.apply`).
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import torch

STEADY = Path(__file__).parent / "jobs" / "steady.py"
JOBS = (
    "swin_t", "t5_small", "resnet152", "gpt2", "launch_bound", "lightning", "trainer", "bert", "llama", "lstm",
    "resnet18", "autoencoder",
)  # fmt: skip


def run(job, mode, plan, options):
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "times.json"
        script = [str(STEADY), job, "--steps", str(options.steps), "--out", str(made)]
        script += ["--small"] if options.small else []
        oomph = [sys.executable, "-m", "oomph", "run", "--out", str(Path(directory) / "run")]
        oomph += ["--gpu", options.gpu] if options.gpu else []
        words = {
            "plain": [sys.executable, *script],
            "levers": [sys.executable, *script, "--plan", str(plan)],
            "run": [*oomph, *script],
            "plan": [*oomph, "--plan", str(plan), *script],
        }[mode]
        began = time.perf_counter()
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        row = dict(
            job=job,
            mode=mode,
            status=ended.returncode,
            seconds=round(time.perf_counter() - began, 1),
        )
        if not made.exists():
            return row | dict(error=(ended.stdout + ended.stderr)[-2000:])
        times = json.loads(made.read_text())
        blocks = times["ms"]
        return row | dict(
            ms=round(statistics.median(blocks[len(blocks) // 2 :]), 4), first_ms=round(blocks[0], 4), peak=times["peak"],
            blocks=blocks,
        )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--job", nargs="*", default=list(JOBS))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--plans", type=Path)
    parser.add_argument("--mode", nargs="*", default=["plain", "run", "levers", "plan"])
    parser.add_argument("--gpu", help="a virtual GPU, to try the script")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    about = dict(
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"), command=" ".join(sys.argv),
        machine=torch.cuda.get_device_name() if torch.cuda.is_available() else "none", cores=os.cpu_count(),
        torch=torch.__version__, python=platform.python_version(),
    )  # fmt: skip
    rows = []
    for job in options.job:
        plan = options.plans / f"{job}.toml" if options.plans else None
        modes = ["plain", "run"] + (["levers", "plan"] if plan and plan.exists() else [])
        modes = [mode for mode in modes if mode in options.mode]
        for number in range(options.rounds):
            for mode in modes if number % 2 == 0 else modes[::-1]:
                rows.append(run(job, mode, plan, options))
                shown = {key: value for key, value in rows[-1].items() if key != "blocks"}
                print(json.dumps(shown), flush=True)
                # Kept as it grows: a machine may be taken away.
                Path(options.out).write_text(json.dumps(dict(about, rows=rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
