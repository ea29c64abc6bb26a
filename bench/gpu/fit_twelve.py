"""What `oomph fit` costs for the jobs of `net.py` that train, on a GPU that is smaller than they need.

    python bench/gpu/fit_twelve.py [--workers 8] search PLANS.jsonl [--gpu h200]    # on virtual GPUs
    python bench/gpu/fit_twelve.py [--workers 8] measure PLANS.jsonl OUT.jsonl      # on a GPU
    python bench/gpu/fit_twelve.py table OUT.jsonl

The shares are of what the plain job's allocator holds, as for `net.py`; what lies outside of it is added. `measure` runs each
job plain and with its plans in processes of their own, as `run_plans.py` does, all of them `--repeat` times; a ratio is of the medians.
`--small` takes small jobs, to try the script; `measure --virtual h200` needs no GPU.
"""

import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import run_plans

HERE = Path(__file__).resolve().parent
JOB = HERE / "jobs" / "net_job.py"
JOBS = ("gpt2", "resnet50", "llama_1b", "t5_small", "swin_t", "resnet152", "unet", "lstm", "adam_mlp", "vit_b_16", "lora")  # fmt: skip
SHARES = (90, 75, 50)


def oomph(place: str, command: str, *options: str) -> dict:
    """The result of one command in a folder of its own."""
    program = [str(Path(sys.executable).parent / "oomph"), command]
    if found := os.environ.get("OOMPH"):
        program[0] = found
    done = subprocess.run(
        [*program, "-q", "--json", "result.json", "--out", "report", *options],
        cwd=place, capture_output=True, text=True,
    )  # fmt: skip
    result = Path(place, "result.json")
    return json.loads(result.read_text()) if result.exists() else dict(error=done.stderr[-600:])


def search(options: argparse.Namespace) -> None:
    """Plans for all jobs and shares: the lines that `run_plans.py` reads, too."""
    small = ["--small"] if options.small else []

    def plain(job: str) -> dict:
        with tempfile.TemporaryDirectory() as place:
            return oomph(place, "run", "--gpu", options.gpu, str(JOB), job, "--steps", "3", *small)

    def plan(job: str, share: int, plain: dict) -> dict:
        peak = plain["peak"]
        outside = peak["used_bytes"] - peak["reserved_bytes"]
        budget = outside + peak["reserved_bytes"] * share // 100
        row = dict(job=job, share=share, budget_bytes=budget, plain=peak)
        with tempfile.TemporaryDirectory() as place:
            began = time.time()
            found = oomph(
                place, "fit", "--gpu", options.gpu, "--memory", str(budget), "--margin", "0%", "--plan", "plan.toml", "--patch",
                "plan.patch", "--max-time", f"{options.limit}s", str(JOB), job, *small,
            )  # fmt: skip
            row.update(seconds=round(time.time() - began, 1), outcome=found.get("outcome"))
            if found.get("chosen") is None:
                return row | dict(error=found.get("error"))
            chosen = found["plans"][found["chosen"]]
            keys = ("what", "same_results", "time_ratio", "peak", "verified")
            row.update(chosen=0, plans=[{key: chosen.get(key) for key in keys}])
            text = Path(place, "plan.toml").read_text()
            return row | dict(plan_toml=text.replace(f"{HERE.parents[1]}{os.sep}", ""))

    with concurrent.futures.ThreadPoolExecutor(options.workers) as pool, options.plans.open("a") as file:  # fmt: skip
        plains = dict(zip(options.job, pool.map(plain, options.job), strict=True))
        cases = [(job, share, plains[job]) for job in options.job for share in options.share]
        for done in concurrent.futures.as_completed([pool.submit(plan, *case) for case in cases]):
            row = done.result()
            file.write(json.dumps(row) + "\n")
            file.flush()
            what = row["plans"][0] if "plans" in row else dict(what=row.get("error"))
            print(row["job"], row["share"], row["outcome"], row["seconds"], what.get("time_ratio"), what["what"], flush=True)  # fmt: skip


def measure(options: argparse.Namespace) -> None:
    """Plain jobs and plans in turn, until the time is up."""
    small = ["--small"] if options.small else []
    rows = [json.loads(line) for line in options.plans.read_text().splitlines()]
    rows = [row for row in rows if row["job"] in options.job and row["share"] in options.share]
    runs = []
    for job in dict.fromkeys(row["job"] for row in rows):
        settings = dict(script=str(JOB), arguments=[job, *small])
        runs.append((settings, dict(job=job, kind="plain")))
        for row in rows:
            if row["job"] == job and row.get("chosen") is not None:
                levers = tomllib.loads(row["plan_toml"])["lever"]
                budget = int(row["budget_bytes"] / (1 - run_plans.MARGIN))
                chosen = row["plans"][0]
                about = {"kind": "plan", "share": row["share"], "what": chosen["what"], "planned": chosen["peak"], "planned_ratio": chosen["time_ratio"]}  # fmt: skip
                runs.append((settings | dict(levers=levers, budget=budget), dict(job=job, **about)))
    runs *= options.repeat
    with options.out.open("a") as file:
        for line, result in run_plans.in_turn(runs, options.workers, options.most, options.virtual):
            line = line | dict(measured=result)
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(run_plans.say(line), run_plans.settled(result), flush=True)
    table(options)


def table(options: argparse.Namespace) -> None:
    """A line for each job: its plain step, and for each share what was measured and planned; then medians."""
    lines = [json.loads(line) for line in options.out.read_text().splitlines()]
    steps: dict[tuple, list[float]] = {}
    planned, off, failed = {}, [], []
    for line in lines:
        key = (line["job"], line.get("share", 100))
        if line["measured"].get("error"):
            failed.append((*key, line["measured"]["error"][-120:]))
        elif one := run_plans.settled(line["measured"]):
            steps.setdefault(key, []).append(one)
            planned[key] = line.get("planned_ratio")
    ratios: dict[int, list[float]] = {share: [] for share in SHARES}
    for job in dict.fromkeys(line["job"] for line in lines):
        plain = steps.get((job, 100))
        text = f"{job:10}"
        if plain:
            text += f" {1e3 * statistics.median(plain):6.1f} ms ({max(plain) / min(plain) - 1:.0%})"
        for share in SHARES:
            if plain and (own := steps.get((job, share))):
                ratio = statistics.median(own) / statistics.median(plain)
                ratios[share].append(ratio)
                off.append(planned[job, share] / ratio - 1)
                text += f" | {share} %: {ratio:5.2f} planned {planned[job, share]:5.2f} ({off[-1]:+.0%})"  # fmt: skip
        print(text)
    for share, some in ratios.items():
        if some:
            print(f"{share} %: {statistics.median(some):.2f} in the median of {len(some)}")
    if off:
        errors = sorted(map(abs, off))
        within = sum(error <= 0.15 for error in errors)
        print(f"planned ratio: within 15 % in {within} of {len(errors)}, {statistics.median(errors):.1%} off in the median")  # fmt: skip
    for one in failed:
        print("failed:", *one)


def main() -> None:
    """One of the three."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--job", nargs="+", default=JOBS, choices=JOBS)
    parser.add_argument("--share", nargs="+", type=int, default=SHARES)
    parser.add_argument("--workers", type=int, default=8)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("search")
    one.add_argument("plans", type=Path)
    one.add_argument("--gpu", default="h200")
    one.add_argument("--limit", type=int, default=120, help="seconds for one search")
    one.set_defaults(does=search)
    one = commands.add_parser("measure")
    one.add_argument("plans", type=Path)
    one.add_argument("out", type=Path)
    one.add_argument("--repeat", type=int, default=2)
    one.add_argument("--most", type=float, default=500, help="seconds after which no run begins")
    one.add_argument("--virtual")
    one.set_defaults(does=measure)
    one = commands.add_parser("table")
    one.add_argument("out", type=Path)
    one.set_defaults(does=table)
    options = parser.parse_args()
    options.does(options)


if __name__ == "__main__":
    main()
