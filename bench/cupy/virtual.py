"""Runs on a virtual GPU what ran on a real one, and compares: `python bench/cupy/virtual.py TRUTH.jsonl OUT.jsonl`.

`--script` is the file of jobs, `--table` only prints the table of two files.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

FIGURES = ("used", "pool", "device_used")


def read(path):
    return {row["job"]: row for row in map(json.loads, open(path)) if "job" in row}


def start(name, given):
    with tempfile.TemporaryDirectory() as place:
        command = [
            Path(sys.executable).with_name("oomph"), "run", "--gpu", given.gpu, "--quiet", "--out", f"{place}/run", "--json", f"{place}/x.json",
            given.script, "--job", name,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            return {"job": name, "end": done.stderr[-400:]}
        said = json.loads(Path(place, "x.json").read_text())
    return json.loads(lines[-1]) | {
        "oomph": {key: said[key] for key in ("verdict", "peak", "assumptions")}
    }


def table(truth, found):
    print("| job | in arrays | off | pool | off | device | off |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, row in truth.items():
        cells = [name]
        for figure in FIGURES:
            real, here = row.get(figure), found.get(name, {}).get(figure)
            if real is None or here is None:
                cells += ["–", "–"]
                continue
            cells += [f"{real / 2**20:,.1f}", f"{(here - real) / max(real, 1):+.2%}"]
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("truth")
    parser.add_argument("out")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--script", default=str(Path(__file__).with_name("jobs.py")))
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    truth = read(given.truth)
    if not given.table:
        about = {
            "machine": f"no GPU: oomph run --gpu {given.gpu}", "python": platform.python_version(),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": " ".join(["python", "bench/cupy/virtual.py", *sys.argv[1:]]),
        }  # fmt: skip
        with open(given.out, "w", buffering=1) as out:
            print(json.dumps({"about": about}), file=out)
            for name in truth:
                print(json.dumps(start(name, given)), file=out)
    table(truth, read(given.out))


if __name__ == "__main__":
    main()
