"""Planted leaks: after five steps, does oomph name the line that leaks, and the step in which memory is full?

    python bench/scripts/leaks.py OUT.json [NAME…]

Each script in `leaks/` leaves a little more than 0.1 % of a card of 2 GiB behind in every step. Lines that make what stays
end in `# stays`. Each runs twice: for five steps, and until memory is full.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LEAKS = Path(__file__).resolve().parent / "leaks"
OOMPH = os.path.join(os.path.dirname(sys.executable), "oomph")
CARD = ["--gpu", "rtx-3060", "--memory", "2GiB"]
LIMIT = 900
"""Seconds that one command may take."""
LEAKED = dict(
    bank_that_grows=2000 * 288, cache_by_number=1000 * 580, closures_called_later=48 * 3 * 64 * 64,
    errors_remembered=280 * 2048, hooks_that_keep=125 * 64 * 72, log_records=2000 * 280, meters_registered=460 * 1250,
    outputs_listed=1000 * 575, replay_on_gpu=80 * 4 * 42 * 42, running_penalty=1100 * (512 + 32 + 8),
    state_not_detached=750 * (512 + 256), streams_left_open=580_000,
)  # fmt: skip
"""Numbers of four bytes that each script leaves behind in a step."""


def run(script: Path, *options: str) -> dict:
    """What `oomph run` says of a script."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out.json")
        words = [OOMPH, "run", *CARD, *options, "--out", f"{folder}/run", "--json", str(out)]
        subprocess.run([*words, str(script)], cwd=folder, capture_output=True, timeout=LIMIT)
        return json.loads(out.read_text())


def measure(name: str) -> dict:
    """One row: what was said after five steps, beside what is true."""
    script = LEAKS / f"{name}.py"
    lines = script.read_text().splitlines()
    leaks = [f"{script.name}:{n}" for n, line in enumerate(lines, 1) if line.endswith("# stays")]
    early, whole = run(script, "--steps", "5"), run(script, "--no-measure")
    growth = early["growth"] or {}
    return dict(
        verdict=early["verdict"], basis=early["basis"], growth=early["growth"], leaking_lines=leaks,
        leaked_bytes_per_step=4 * LEAKED[name], used_bytes=early["peak"]["used_bytes"],
        line_right=growth.get("place") in leaks, full_in_truth=(whole["oom"] or {}).get("step"),
    )  # fmt: skip


def main() -> None:
    """Runs what is asked for, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    rows = json.loads(args.out.read_text())["scripts"] if args.out.exists() else {}
    for name in args.names or sorted(LEAKED):
        rows[name] = measure(name)
        print(name, rows[name], flush=True)
        result = dict(
            machine="2-core VM", date=time.strftime("%Y-%m-%d"),
            command=" ".join(["python", "bench/scripts/leaks.py", *sys.argv[1:]]), scripts=rows,
        )  # fmt: skip
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
