"""Runs public training scripts, unmodified, through `oomph run`, and keeps what came of it.

    python bench/scripts/run.py --checkouts DIR [--oomph PATH] [--packages DIR] [NAME…]

DIR holds the repositories of scripts.toml, each under its own name (`git clone`, then
`git checkout` of the commit). Data is generated into the checkouts; nothing is downloaded.
Results go to results.jsonl (one line a script, replaced when it runs again) and the README's table.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import make_data

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.jsonl"
README = HERE / "README.md"
BEGIN, END = "<!-- table by run.py -->", "<!-- end of table -->"


def prepare(script: dict, folder: Path, home: Path, python: str) -> None:
    for kind, place in script.get("data", {}).items():
        target = (folder / place.format(torch_home=home)).resolve()
        done = target / f".generated-{kind}"
        if not done.exists():
            subprocess.run([python, make_data.__file__, kind, str(target)], check=True)
            done.touch()


def run(script: dict, args: argparse.Namespace) -> dict:
    checkout = (args.checkouts / script["repository"].split("/")[1]).resolve()
    folder = checkout / script["folder"]
    home = (args.checkouts / "torch-home").resolve()
    python = str(Path(args.oomph).parent / "python")
    extra = [str(args.packages.resolve())] if args.packages else []
    os.environ["PYTHONPATH"] = os.pathsep.join([*args.python_path, *extra])
    prepare(script, folder, home, python)
    path = [str(checkout / script["python_path"])] if "python_path" in script else []
    environment = dict(
        os.environ, TORCH_HOME=str(home), HF_HUB_OFFLINE="1", WANDB_MODE="offline",
        TQDM_DISABLE="1", PYTHONPATH=os.pathsep.join([*args.python_path, *path, *extra]),
    )  # fmt: skip
    out = (args.checkouts / "reports" / script["name"]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    summary = out / "summary.json"
    summary.unlink(missing_ok=True)
    command = [args.oomph] if not args.module else [python, "-m", "oomph"]
    command += ["run", "--gpu", args.gpu, "--steps", str(args.steps), "--out", str(out)]
    command += shlex.split(script["command"])
    began = time.time()
    with open(out / "output.log", "w") as log:
        try:
            status = subprocess.run(
                command, cwd=folder, env=environment, stdout=log, stderr=log, timeout=args.timeout
            ).returncode
        except subprocess.TimeoutExpired:
            status = "timeout"
    row = dict(
        name=script["name"], kind=script["kind"], repository=script["repository"],
        commit=script["commit"], script=f"{script['folder']}/{script['command']}".removeprefix("./"),
        gpu=args.gpu, status=status, seconds=round(time.time() - began, 1),
    )  # fmt: skip
    if summary.exists():
        made = json.loads(summary.read_text())
        row |= dict(
            verdict=made["verdict"], steps=len(made["steps"]), peak=made["peak"],
            by_category=made["by_category"], assumptions=made["assumptions"],
            versions=made["versions"],
        )  # fmt: skip
    if status not in (0, 3):
        row["error"] = (out / "output.log").read_text()[-600:]
    return row


def table(rows: list[dict]) -> str:
    lines = [
        "| script | kind | verdict | peak allocated | reserved | used | assumptions | seconds |",
        "| --- | --- | --- | ---: | ---: | ---: | --- | ---: |",
    ]
    for row in rows:
        peak = row.get("peak", {})
        size = [
            f"{peak[f'{part}_bytes'] / 2**20:,.1f} MiB" if f"{part}_bytes" in peak else ""
            for part in ("allocated", "reserved", "used")
        ]
        kinds = sorted({a["what"] for a in row.get("assumptions", [])})
        verdict = row.get("verdict", "no record").replace("_", " ")
        lines.append(
            f"| `{row['name']}` {row['repository']} | {row['kind']} | {verdict} | "
            f"{' | '.join(size)} | {'; '.join(kinds) or 'none'} | {row['seconds']} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkouts", type=Path, required=True)
    parser.add_argument("--packages", type=Path, help="a folder of further packages")
    parser.add_argument("--oomph", default="oomph", help="the installed command")
    parser.add_argument("--python-path", action="append", default=[])
    parser.add_argument("--module", action="store_true", help="run python -m oomph beside --oomph")
    parser.add_argument("--gpu", default="rtx-4090")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    scripts = tomllib.loads((HERE / "scripts.toml").read_text())["script"]
    rows = {}
    if RESULTS.exists():
        rows = {(row := json.loads(line))["name"]: row for line in RESULTS.read_text().splitlines()}
    for script in scripts:
        if args.names and script["name"] not in args.names:
            continue
        row = rows[script["name"]] = run(script, args)
        print(row["name"], row["status"], row.get("verdict"), row["seconds"], "s", flush=True)
        ordered = [rows[s["name"]] for s in scripts if s["name"] in rows]
        RESULTS.write_text("".join(json.dumps(row) + "\n" for row in ordered))
        if README.exists():
            text = README.read_text()
            before, _, rest = text.partition(BEGIN)
            after = rest.partition(END)[2]
            README.write_text(f"{before}{BEGIN}\n{table(ordered)}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
