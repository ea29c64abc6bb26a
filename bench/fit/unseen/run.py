"""`oomph fit` on the jobs of this folder: `python run.py OUT.jsonl [--split tuned] [--shares 50,25,75] [--jobs 4]`.

A budget is the memory outside the allocator and a share of what the allocator held on a virtual H200 (`jobs.toml`). The GPU has that and the 2 %
that `oomph fit` leaves free unless told otherwise; until November 2026 it had the budget, of which nothing was left free.
One line of JSON for each job and share: how the search ended, how long it took, the chosen plan with its memory, time
ratio and what it does to results, as `bench/fit/run.py` writes them (`bench/gpu/run_plans.py` reads them). `--seconds`
ends the whole after that time; what was not begun is left out. `OUT.jsonl --table` prints a results file.
"""

import argparse
import concurrent.futures
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
END = 12
"""Seconds of a search's limit that are left for writing down what it has found by then."""
MARGIN = 0.02
"""The part of a GPU's memory that `oomph fit` leaves free by default."""
SAME = ("exact", "rounding")
"""What a plan that keeps results does to them."""


def fit(name: str, job: dict, share: int, args: argparse.Namespace) -> dict:
    """One search."""
    budget = job["outside_bytes"] + job["allocator_bytes"] * share // 100
    plain = dict(used_bytes=job["used_bytes"], reserved_bytes=job["allocator_bytes"])
    row = dict(job=name, split=job["split"], share=share, budget_bytes=budget, plain=plain)
    with tempfile.TemporaryDirectory() as place:
        plan = Path(place, "plan.toml")
        command = [
            *args.oomph.split(), "fit", "--gpu", args.gpu, "--memory", str(math.ceil(budget / (1 - MARGIN))), "--json", "fit.json",
            "-q", "--plan", str(plan), "--patch", "plan.patch", "--out", "fit", "--max-time", f"{args.limit - END:.0f}s",
            *args.option, str(HERE / f"{name}.py"),
        ]  # fmt: skip
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=place, capture_output=True, text=True, timeout=args.limit
            )
        except subprocess.TimeoutExpired:
            return row | dict(outcome="timeout", seconds=args.limit)
        row.update(seconds=round(time.monotonic() - began, 1), status=done.returncode)
        found = Path(place, "fit.json")
        if not found.exists():
            return row | dict(outcome="failed", says=(done.stderr or done.stdout)[-600:])
        result = json.loads(found.read_text())
        row.update(
            {
                key: result.get(key)
                for key in (
                    "outcome",
                    "stopped",
                    "runs",
                    "run_seconds",
                    "plain_seconds",
                    "planning_seconds",
                    "floor",
                )
            }
        )
        row["least_bytes"] = ((result.get("least") or {}).get("peak") or {}).get("used_bytes")
        if result.get("least"):
            row["least"] = {key: result["least"].get(key) for key in ("what", "time_ratio")}
            row["held_by"] = result.get("held_by")
        row["tried"] = [
            [tried["what"][:300], tried["used_bytes"], round(tried["time_ratio"], 2)]
            for tried in result.get("tried") or []
        ]
        row["rejected"] = [str(what)[:300] for what in result.get("rejected") or []]
        if result.get("chosen") is not None:
            chosen = result["plans"][result["chosen"]]
            keys = (
                "what",
                "levers",
                "same_results",
                "time_ratio",
                "peak",
                "on_whole_gpu",
                "predicted",
                "verified",
            )
            row.update(plans=[{key: chosen.get(key) for key in keys}], chosen=0)
            row["plan_toml"] = plan.read_text().replace(f"{HERE.parents[2]}{os.sep}", "")
        patches = [
            path.name for path in Path(place).glob("plan*") if path.suffix in (".patch", ".md")
        ]
        row["patches"] = sorted(patches)
    return row


def plan_of(row: dict) -> dict:
    """The chosen plan of a row; empty if there is none."""
    return {} if row.get("chosen") is None else row["plans"][row["chosen"]]


def table(rows: list[dict]) -> str:
    """The rows for people: by share and split, then one by one."""
    lines = []
    for share in sorted({row["share"] for row in rows}, reverse=True):
        for split in sorted({row["split"] for row in rows}):
            some = [row for row in rows if row["share"] == share and row["split"] == split]
            if not some:
                continue
            same = [row for row in some if plan_of(row).get("same_results") in SAME]
            ratios = sorted(plan_of(row)["time_ratio"] for row in same)
            seconds = sorted(row["seconds"] for row in some)
            planned = sum(bool(plan_of(row)) for row in some)
            median = f"{ratios[len(ratios) // 2]:.2f}" if ratios else "–"
            short = sorted(row["seconds"] for row in some if row.get("plain_seconds", 11) <= 10)
            lines.append(
                f"{share} % {split}: {planned} of {len(some)} have a plan, {len(same)} with the same results, slowdown "
                f"{median} in the median, {seconds[len(seconds) // 2]:.0f} s in the median"
                + (
                    f", {short[len(short) // 2]:.0f} s of the {len(short)} whose plain run takes 10 s at most"
                    if short
                    else ""
                )
            )
    for row in sorted(rows, key=lambda row: (-row["share"], row["job"])):
        chosen = plan_of(row)
        what = (
            f"{chosen['same_results']}, {chosen['time_ratio']:.2f}: {chosen['what']}"
            if chosen
            else f"{row['outcome']} {row.get('least_bytes') or ''} {row.get('says', '')[-200:]!r}"
        )
        lines.append(
            f"{row['share']:3} % {row['job']:24} {row['budget_bytes'] / 2**30:6.2f} GiB {row['seconds']:5.0f} s  {what}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--split", default="tuned")
    parser.add_argument("--only", help="names, with commas")
    parser.add_argument("--shares", default="50,25,75")
    parser.add_argument("--jobs", type=int, default=1, help="searches at a time")
    parser.add_argument(
        "--gpu", default="h200", help="the GPU to plan for; budgets stay those of an H200"
    )
    parser.add_argument("--limit", type=float, default=600, help="seconds for one search")
    parser.add_argument("--seconds", type=float, default=1e9, help="seconds for all of them")
    parser.add_argument(
        "--oomph", default=str(Path(sys.executable).parent / "oomph"), help="the command"
    )
    parser.add_argument("--option", action="append", default=[], help="passed to oomph fit")
    parser.add_argument("--table", action="store_true", help="print OUT.jsonl")
    args = parser.parse_args()
    if args.table:
        print(table([json.loads(line) for line in args.out.read_text().splitlines()]))
        return
    jobs = tomllib.loads((HERE / "jobs.toml").read_text())
    names = (
        args.only.split(",")
        if args.only
        else [n for n, job in jobs.items() if job["split"] in args.split.split(",")]
    )
    end = time.monotonic() + args.seconds
    about = dict(
        date=datetime.date.today().isoformat(),
        machine=f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        command="python bench/fit/unseen/run.py " + " ".join(sys.argv[1:]),
    )

    def one(work: tuple[str, int]) -> dict | None:
        name, share = work
        return fit(name, jobs[name], share, args) if time.monotonic() < end else None

    work = [(name, int(share)) for share in args.shares.split(",") for name in names]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool, args.out.open("a") as file:
        for done in concurrent.futures.as_completed([pool.submit(one, each) for each in work]):
            row = done.result()
            if row is not None:
                file.write(json.dumps(row | about) + "\n")
                file.flush()
                print(table([row]).splitlines()[-1], flush=True)


if __name__ == "__main__":
    main()
