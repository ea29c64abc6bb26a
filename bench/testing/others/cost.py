"""500 tests of kornia on the CPU and on the virtual GPU, both at once, each on a core of its own; then they swap cores.

    python bench/testing/others/cost.py --sources DIR --out bench/testing/others/results/cost.json

The names are in results/cost_tests.txt: of the folders that name no other package, evenly spaced.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NAMES = Path(__file__).parent / "results" / "cost_tests.txt"
WAYS = [("cpu", "cpu", []), ("virtual GPU", "cuda", ["--oomph-gpu", "h200"])]


def run(sources: Path, way: str, device: str, options: list[str], core: int) -> dict:
    """Seconds and the last line of one run of pytest."""
    with tempfile.TemporaryDirectory() as place:
        names, out = Path(place, "names"), Path(place, "out")
        names.write_text(NAMES.read_text().replace("[DEVICE", f"[{device}"))
        began = time.perf_counter()
        with out.open("w") as file:
            process = subprocess.Popen(
                ["taskset", "-c", str(core), sys.executable, "-m", "pytest", "-q", "--tb=line", "--rootdir=.", "-o", "addopts=",
                 "-p", "no:cacheprovider", "-p", "no:xdist", "--device", device, "--dtype", "float32", *options, f"@{names}"],
                cwd=sources / "kornia", stdout=file, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        _, _, used = os.wait4(process.pid, 0)
        text = out.read_text().splitlines()
        return dict(
            way=way,
            wall_s=round(time.perf_counter() - began, 2),
            cpu_s=round(used.ru_utime + used.ru_stime, 2),
            last=text[-1],
            failed=[line for line in text if line.startswith("FAILED")],
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = []
    for number in range(given.times):
        with ThreadPoolExecutor(2) as pool:
            done = [
                pool.submit(run, given.sources, *way, (at + number) % 2)
                for at, way in enumerate(WAYS)
            ]
            rows += [one.result() for one in done]
    given.out.write_text(json.dumps(dict(tests=500, runs=rows), indent=1) + "\n")


if __name__ == "__main__":
    main()
