"""`oomph fit` on ordinary training scripts at parts of what they need: `python run.py OUT.jsonl [job…]`.

For each job in `jobs/` and each of 75, 50, 35 and 25 % of its plain peak on an H200: the plan that
was chosen, its peak as predicted, as planned (measured by the run that verified it) and as measured
by another run of the plan, with the budget as the capacity; or the least that was found possible.
One line of JSON each. `--shares 75,50` and `--gpu` change what is asked.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
JOBS = ("resnet50", "vit_b_16", "gpt2", "bert_base", "llama1b")


def oomph(*words: object) -> int:
    """Run the command; its exit status."""
    command = [str(Path(sys.executable).parent / "oomph"), *map(str, words)]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode


def plain_peak(job: str, gpu: str, place: Path) -> dict:
    """The peak of the job as it is."""
    summary = place / "plain.json"
    status = oomph("run", "--gpu", gpu, "--steps", 3, "--json", summary, "-q", "--out", place / "plain", script(job))  # fmt: skip
    if status != 0:
        raise SystemExit(f"{job} does not run: exit status {status}")
    return json.loads(summary.read_text())["peak"]


def script(job: str) -> Path:
    """The script of a job."""
    return HERE / "jobs" / f"{job}.py"


def fit(job: str, gpu: str, share: int, peak: dict, place: Path, options: list[str]) -> dict:
    """One search, and another run of what it chose."""
    budget = peak["used_bytes"] * share // 100
    result, plan = place / f"fit-{share}.json", place / f"plan-{share}.toml"
    status = oomph(
        "fit", "--gpu", gpu, "--memory", budget, "--margin", "0%", "--json", result, "-q",
        "--plan", plan, "--patch", place / f"plan-{share}.patch", "--out", place / f"fit-{share}",
        *options, script(job),
    )  # fmt: skip
    row = dict(job=job, gpu=gpu, share=share, budget_bytes=budget, plain=peak, status=status)
    if status not in (0, 3):
        return row
    found = json.loads(result.read_text())
    row.update(
        outcome=found["outcome"],
        runs=found["runs"],
        run_seconds=found["run_seconds"],
        planning_seconds=found["planning_seconds"],
        rejected=found["rejected"],
        plans=found["plans"],
        chosen=found["chosen"],
        least=found["least"],
        gpus=found["gpus"],
        variants=found["variants"],
    )
    if found["chosen"] is not None:
        again = place / f"again-{share}.json"
        row["again_status"] = oomph(
            "run", "--gpu", gpu, "--memory", budget, "--steps", 16, "--plan", plan, "--no-measure",
            "--json", again, "-q", "--out", place / f"again-{share}", script(job),
        )  # fmt: skip
        if again.exists():
            row["again"] = json.loads(again.read_text())["peak"]
        row["plan_toml"] = plan.read_text().replace(str(HERE.resolve().parents[1]) + os.sep, "")
    return row


def say(row: dict) -> str:
    """The row for people."""
    head = f"{row['job']:10} {row['share']:3} % {row['budget_bytes'] / 2**30:6.2f} GiB  "
    if row.get("chosen") is None:
        least = (row.get("least") or {}).get("peak", {}).get("used_bytes", 0)
        return f"{head}{row.get('outcome', 'failed')}: least {least / 2**30:.2f} GiB"
    plan = row["plans"][row["chosen"]]
    planned, predicted = plan["peak"]["used_bytes"], plan["predicted"]["used_bytes"]
    again = row.get("again", {}).get("used_bytes", 0)
    return (
        f"{head}{plan['what']}: predicted {predicted / 2**30:.2f}, planned {planned / 2**30:.2f}, "
        f"measured {again / 2**30:.2f} GiB, time {plan['time_ratio']:.2f}, "
        f"{row['runs']} runs {row['run_seconds']:.0f} s, planning {row['planning_seconds']:.1f} s"
    )


def main() -> None:
    """Measure all that was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("jobs", nargs="*", default=JOBS)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--shares", default="75,50,35,25")
    parser.add_argument("--keep", type=Path, help="where to keep plans and records")
    parser.add_argument("--option", action="append", default=[], help="passed to oomph fit")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for job in args.jobs:
            place = (args.keep or Path(temporary)) / job
            place.mkdir(parents=True, exist_ok=True)
            peak = plain_peak(job, args.gpu, place)
            for share in map(int, args.shares.split(",")):
                row = fit(job, args.gpu, share, peak, place, args.option)
                row.update(
                    date=datetime.date.today().isoformat(),
                    machine=f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
                    command="python bench/fit/run.py " + " ".join(sys.argv[1:]),
                )
                with args.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(say(row), flush=True)


if __name__ == "__main__":
    main()
