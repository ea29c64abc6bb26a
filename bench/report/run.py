"""Measures the report of a long history: its size, how long it takes to write, open and pan.

    make bench-report        or: python bench/report/run.py --out bench/report/results/virtual.json

A job of eight steps is recorded on the virtual GPU and its last step repeated until there are five
million events (crates/oomph-trace/examples/repeat_steps.rs). `oomph report` makes the page, and
browser.mjs opens it in headless Chromium. Needs Node and Chromium; see web/tests.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
OOMPH = ROOT / ".venv/bin/oomph"
EVENTS = 5_000_000


def oomph(*words: str | Path) -> float:
    """Run oomph and return the seconds that it took; status 3 is a result."""
    began = time.perf_counter()
    done = subprocess.run([OOMPH, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        sys.exit(done.stderr)
    return time.perf_counter() - began


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        example = ROOT / "examples/train_gpt.py"
        oomph("run", "--gpu", "h200", "--steps", "8", "--out", work / "run", "--quiet", example)
        long = work / "long.oomph"
        repeat = ["cargo", "run", "--release", "-q", "-p", "oomph-trace", "--example"]
        made = subprocess.run(
            [*repeat, "repeat_steps", "--", work / "run/trace.oomph", str(EVENTS), long],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        results = {
            "date": datetime.date.today().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
            "load_average": os.getloadavg()[0],
            "command": "python bench/report/run.py",
            "history": made,
        }
        usual = [oomph("report", work / "run") for _ in range(arguments.repeat)]
        page = work / "long.html"
        whole = [oomph("report", long, "--out", page) for _ in range(arguments.repeat)]
        browser = ["node", str(Path(__file__).parent / "browser.mjs")]
        results["usual run"] = {
            "job": "examples/train_gpt.py, 8 steps on an H200",
            "report_seconds": min(usual),
            "page_bytes": (work / "run/index.html").stat().st_size,
        }
        results["long"] = {
            "trace_bytes": long.stat().st_size,
            "read_and_report_seconds": min(whole),
            "page_bytes": page.stat().st_size,
        }
        opened = [
            json.loads(subprocess.run([*browser, page], capture_output=True, check=True).stdout)
            for _ in range(arguments.repeat)
        ]
        # The quickest of each: other programs share the machine.
        results["long"]["seconds_until_drawn"] = min(one["drawn"] for one in opened)
        results["long"]["seconds_until_every_block"] = min(one["complete"] for one in opened)
        results["long"]["pan"] = [
            {
                "share_of_history": opened[0]["pan"][index]["share"],
                "frames_per_second": max(one["pan"][index]["fps"] for one in opened),
                "drawing_ms": min(one["pan"][index]["drawing"] for one in opened),
            }
            for index in range(len(opened[0]["pan"]))
        ]
    text = json.dumps(results, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


main()
