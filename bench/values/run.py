"""Jobs whose memory depends on values: their peaks on a GPU, and on a virtual one with and without `--compute`.

    python bench/values/run.py FILE             on this machine's GPU
    python bench/values/run.py FILE --virtual   on a virtual H200, with `oomph run`

Rows are appended to FILE (JSON lines): job, how it ran, peak allocated and reserved bytes, what it printed, seconds.
`--table FILE…` prints the rows beside each other.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
JOBS = sorted((HERE / "jobs").glob("*.py"))
WAYS = {"virtual": [], "virtual, --compute": ["--compute", "8GiB"]}


def measure(job, prefix):
    started = time.monotonic()
    done = subprocess.run(
        [*prefix, str(HERE / "peaks.py"), str(job)], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"error": done.stderr[-500:]}
    _, allocated, reserved, torch, gpu = lines[-1].split()
    return {
        "allocated": int(allocated), "reserved": int(reserved), "printed": lines[:-1],
        "seconds": round(time.monotonic() - started, 1), "torch": torch, "gpu": gpu,
    }  # fmt: skip


def table(rows):
    ways = ["GPU", *WAYS]
    print("| job | " + " | ".join(ways) + " |\n| --- |" + " ---: |" * len(ways))
    for job in sorted({row["job"] for row in rows}):
        of = {row["way"]: row for row in rows if row["job"] == job and "allocated" in row}
        cells = []
        for way in ways:
            row, real = of.get(way), of.get("GPU")
            if row is None:
                cells.append("–")
                continue
            cell = " / ".join(f"{row[kind] / 2**20:,.1f}" for kind in ("allocated", "reserved"))
            if real and way != "GPU":
                parts = (row[kind] / real[kind] - 1 for kind in ("allocated", "reserved"))
                cell += " (" + " / ".join(f"{part:+.2%}" for part in parts) + ")"
            cells.append(cell)
        print(f"| {job} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--virtual", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        return table(
            [json.loads(line) for file in options.files for line in file.read_text().splitlines()]
        )
    oomph = Path(sys.executable).with_name("oomph")
    for job in JOBS:
        ways = {"GPU": [sys.executable]}
        if options.virtual:
            ways = {way: [oomph, "run", "-q", "--gpu", "h200", *more] for way, more in WAYS.items()}
        for way, prefix in ways.items():
            row = {"job": job.stem, "way": way, **measure(job, prefix)}
            with options.files[0].open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(row, flush=True)
    return None


if __name__ == "__main__":
    main()
