"""Makes public training scripts fit less memory with `oomph fit`, and keeps what came of it.

    python bench/scripts/plans.py --checkouts DIR [--oomph PATH] [--packages DIR] [NAME…]

DIR is as for run.py. Each script runs as it is first; then, for each of --shares, `oomph fit` gets
what the process holds outside PyTorch's allocator, which no lever can reduce, and that share of what
the allocator held, so that the margin stays free above it. Where a plan is found, two things are
checked: `oomph run --plan` needs what was planned; the patch applies, and the script with it (its
other levers apart) runs and needs no more. Results go to fit.jsonl and the README's table.
"""

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import run as scripts

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "plans.jsonl"
BEGIN, END = "<!-- table by plans.py -->", "<!-- end of plans.py's table -->"
MIB = 2**20
MARGIN = 0.02
TRACEBACK = "Traceback (most recent call last)"


def measure(words: list[str], where, out: Path, args) -> dict:
    """Status, peak and error of one `oomph run`."""
    out.mkdir(parents=True, exist_ok=True)
    summary, log = out / "summary.json", out.with_name(f"{out.name}.log")
    summary.unlink(missing_ok=True)
    common = ["run", "--gpu", args.gpu, "--steps", str(args.steps), "--out", str(out)]
    made = {"status": scripts.oomph([*common, *words], where, log, args)}
    if summary.exists():
        made["peak"] = json.loads(summary.read_text())["peak"]
    if made["status"] not in (0, 3):
        made["error"] = scripts.error(log)
    return made


def patched(script: dict, where, files: tuple[Path, Path], memory: str, args) -> dict:
    """Whether the patch applies, what the script needs with it, and what it leaves in words."""
    plan, patch = files
    text = patch.read_text()
    made = {
        "lines": len(re.findall(r"^[+-](?![+-])", text, re.MULTILINE)),
        "by_hand": re.findall(r"^# by hand: (.*)", text, re.MULTILINE),
    }
    if not made["lines"]:
        return made | {"applies": None}
    check = subprocess.run(
        ["git", "apply", "--check", str(patch)], cwd=where[0], capture_output=True, text=True
    )
    made["applies"] = check.returncode == 0
    if check.returncode:
        return made | {"error": check.stderr.strip()}
    subprocess.run(["git", "apply", str(patch)], cwd=where[0], check=True)
    try:
        made |= measure(
            ["--memory", memory, *shlex.split(script["command"])], where,
            plan.parent / "patched", args,
        )  # fmt: skip
    finally:
        subprocess.run(["git", "apply", "-R", str(patch)], cwd=where[0], check=True)
    return made


def fit(script: dict, plain: dict, share: float, where, args) -> dict:
    out = (args.checkouts / "fits" / f"{script['name']}-{share:.0%}").resolve()
    out.mkdir(parents=True, exist_ok=True)
    log = out / "output.log"
    result, plan, patch = out / "fit.json", out / "plan.toml", out / "plan.patch"
    for file in (result, plan, patch):
        file.unlink(missing_ok=True)
    fixed = plain["used_bytes"] - plain["reserved_bytes"]
    memory = f"{(fixed + share * plain['reserved_bytes']) / (1 - MARGIN) / MIB:.0f}MiB"
    command = shlex.split(script["command"])
    words = ["--gpu", args.gpu, "--memory", memory]
    own = ["--steps", str(args.steps), "--margin", f"{MARGIN:.0%}", "--json", str(result)]
    own += ["--plan", str(plan), "--patch", str(patch), "--out", str(out / "runs")]
    began = time.time()
    status = scripts.oomph(["fit", *words, *own, *command], where, log, args)
    row = dict(
        name=script["name"], repository=script["repository"], commit=script["commit"],
        share=share, memory=memory, plain=plain, status=status,
        seconds=round(time.time() - began, 1),
        traceback=TRACEBACK in log.read_text(),
    )  # fmt: skip
    if not result.exists():
        return row | {"error": scripts.error(log)}
    found = json.loads(result.read_text())
    keep = ("outcome", "rejected", "runs", "planning_seconds", "held_by", "assumptions")
    row |= {name: found[name] for name in keep}
    row["variants"] = len(found["variants"])
    chosen = found["plans"][found["chosen"]] if found["chosen"] is not None else found["least"]
    if chosen:
        names = ("what", "peak", "predicted", "time_ratio", "same_results", "verified", "notes")
        row["plan"] = {name: chosen[name] for name in names}
    if plan.exists():
        row["run"] = measure(
            ["--memory", memory, "--plan", str(plan), *command], where, out / "planned", args
        )
        row["patch"] = patched(script, where, (plan, patch), memory, args)
    return row


def used(peak: dict) -> str:
    return f"{peak['used_bytes'] / MIB:,.0f}"


def table(rows: list[dict]) -> str:
    lines = [
        "| script | budget, MiB (of) | outcome | levers | planned | with the plan | patched | time | s |",
        "| --- | ---: | --- | --- | ---: | ---: | --- | ---: | ---: |",
    ]
    for row in rows:
        plan, ran, patch = (row.get(part) or {} for part in ("plan", "run", "patch"))
        time_of_step = f"{plan['time_ratio']:.2f}×" if plan else ""
        by_hand = "" if not patch else "in words" if patch["applies"] is None else "does not apply"
        if patch.get("applies"):
            by_hand = used(patch["peak"]) if "peak" in patch else "fails"
        lines.append(
            f"| `{row['name']}` | {row['memory'].removesuffix('MiB')} ({used(row['plain'])}) | "
            f"{row.get('outcome', 'none').replace('_', ' ')} | {plan.get('what', '')} | "
            f"{used(plan['peak']) if plan else ''} | {used(ran['peak']) if 'peak' in ran else ''} | "
            f"{by_hand} | {time_of_step} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = scripts.options(__doc__.splitlines()[0], RESULTS)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.7, 0.45])
    args = parser.parse_args()
    known = scripts.scripts()
    rows = {(row["name"], row["share"]): row for row in scripts.read(args.results)}
    for script in sorted(
        known, key=lambda s: args.names.index(s["name"]) if s["name"] in args.names else 0
    ):
        if args.names and script["name"] not in args.names:
            continue
        where = scripts.place(script, args)
        out = (args.checkouts / "reports" / script["name"]).resolve()
        plain = measure(shlex.split(script["command"]), where, out, args)
        if plain["status"] != 0:
            print(script["name"], "does not run:", plain.get("error", plain), flush=True)
            continue
        for share in args.shares:
            row = fit(script, plain["peak"], share, where, args)
            row = rows[script["name"], share] = scripts.without_paths(row, args)
            what = row.get("plan", {}).get("what", row.get("error"))
            print(row["name"], share, row.get("outcome"), what, row["seconds"], "s", flush=True)
            names = [script["name"] for script in known]
            ordered = sorted(
                rows.values(), key=lambda row: (names.index(row["name"]), -row["share"])
            )
            scripts.write(args.results, ordered)
            if args.results == RESULTS:
                scripts.into_readme(BEGIN, END, table(ordered))
    return 0


if __name__ == "__main__":
    sys.exit(main())
