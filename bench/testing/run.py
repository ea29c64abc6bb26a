"""The pytest plugin: are peaks the same in repeated runs, and what does it cost?

    python bench/testing/run.py repeats --times 20 --out bench/testing/results/repeats.json
    python bench/testing/run.py start --out bench/testing/results/start.json
    python bench/testing/run.py cost --out bench/testing/results/cost.json

`repeats` runs tests/testing/suites/memory_suite.py again and again, in the order of the file, in random orders, and in two
workers of xdist, and compares each test's peak. `start` is what pytest needs more because the plugin is installed: it imports the plugin's modules and adds its
options, in a process of its own each. `cost` runs 500 small tests on the virtual GPU and, the same, on the CPU.
"""

import argparse
import collections
import concurrent.futures
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path

SUITE = Path(__file__).parents[2] / "tests" / "testing" / "suites" / "memory_suite.py"

UNIT_TESTS = """
import os

import pytest
import torch
from torch import nn

DEVICE = os.environ["DEVICE"]


@pytest.mark.parametrize("seed", range(100))
@pytest.mark.parametrize("make", [
    lambda: nn.Linear(64, 32), lambda: nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8)), lambda: nn.LayerNorm(64),
    lambda: nn.MultiheadAttention(64, 4), lambda: nn.GRU(64, 32),
], ids=["linear", "mlp", "norm", "attention", "gru"])
def test_layer(make, seed):
    torch.manual_seed(seed)
    layer = make().to(DEVICE)
    x = torch.randn(8, 4, 64, device=DEVICE, requires_grad=True)
    out = layer(x, x, x) if isinstance(layer, nn.MultiheadAttention) else layer(x)
    out = out[0] if isinstance(out, tuple) else out
    assert out.shape[:2] == (8, 4)
    out.sum().backward()
    assert x.grad is not None and all(p.grad is not None for p in layer.parameters())
"""


def pytest_run(place, *options, **environment):
    """The wall and CPU seconds of a run, of its children too, its status and its output."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=place, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.returncode, done.stdout


def repeats(times, jobs, keep):
    found = collections.defaultdict(collections.Counter)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for number, peaks in enumerate(pool.map(repeat, range(times))):
            for name, peak in peaks:
                found[name][peak] += 1
            print(
                number + 1,
                {name: len(peaks) for name, peaks in found.items() if len(peaks) > 1},
                flush=True,
            )
            different = {name: dict(peaks) for name, peaks in found.items() if len(peaks) > 1}
            tests = {name: dict(peaks) for name, peaks in found.items()}
            kept = dict(times=number + 1, jobs=jobs, tests=tests, different=different)
            keep(kept)
    return kept


def repeat(number):
    """Each test's name and its peak in bytes, in one run."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "test_memory.py").write_text(SUITE.read_text())
        Path(place, "conftest.py").write_text(
            "import os, random\n"
            "def pytest_collection_modifyitems(items):\n"
            "    if os.environ.get('ORDER'):\n"
            "        random.Random(int(os.environ['ORDER'])).shuffle(items)\n"
        )
        way = ("as written", "shuffled", "two workers")[number % 3]
        options = ["--oomph-gpu", "rtx-4090", "--junitxml=out.xml", "test_memory.py"]
        options += ["-n", "2"] if way == "two workers" else []
        pytest_run(place, *options, ORDER=str(number) if way != "as written" else "")
        return [
            (case.get("name"), int(one.get("value")))
            for case in ET.parse(Path(place, "out.xml")).iter("testcase")
            for one in case.iter("property")
            if one.get("name") == "gpu_peak_bytes"
        ]


ADDED = """
import time
import _pytest.config.argparsing as argparsing
import pytest
parser = argparsing.Parser(_ispytest=True)
began, wall = time.process_time_ns(), time.perf_counter_ns()
import oomph._testing.plugin as plugin
plugin.pytest_addoption(parser)
print(time.process_time_ns() - began, time.perf_counter_ns() - wall)
"""


def start(times):
    """In milliseconds of a process of its own each: importing the plugin's modules, and adding its options."""
    found = []
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, "-c", ADDED], capture_output=True, text=True, check=True
        )
        found.append([int(word) / 1e6 for word in done.stdout.split()])
    cpu, wall = (sorted(column) for column in zip(*found))
    return dict(
        times=times,
        cpu_ms=cpu,
        wall_ms=wall,
        median_cpu_ms=statistics.median(cpu),
        median_wall_ms=statistics.median(wall),
    )


def cost(times):
    with tempfile.TemporaryDirectory() as place:
        Path(place, "test_layers.py").write_text(UNIT_TESTS)
        rows = collections.defaultdict(list)
        for _ in range(times):
            for name, device, options in (
                ("cpu", "cpu", ["-p", "no:oomph"]),
                ("virtual GPU", "cuda", ["--oomph-gpu", "rtx-4090"]),
            ):
                wall, cpu, status, text = pytest_run(
                    place, "test_layers.py", *options, DEVICE=device
                )
                rows[name].append(
                    dict(wall_s=wall, cpu_s=cpu, status=status, last=text.strip().splitlines()[-1])
                )
    best = {name: min(row["cpu_s"] for row in found) for name, found in rows.items()}
    return dict(tests=500, runs=dict(rows), cpu_s=best, ratio=best["virtual GPU"] / best["cpu"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["repeats", "start", "cost"])
    parser.add_argument("--times", type=int)
    parser.add_argument("--jobs", type=int, default=1, help="so many of the repeats at once")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    times = given.times or dict(repeats=20, start=60, cost=3)[given.what]
    about = dict(
        command=" ".join(sys.argv), date=datetime.date.today().isoformat(), machine=platform.processor() or platform.machine(),
        cores=os.cpu_count(), python=platform.python_version(),
    )  # fmt: skip
    given.out.parent.mkdir(parents=True, exist_ok=True)

    def keep(found):
        given.out.write_text(json.dumps(dict(about, **found), indent=1) + "\n")

    options = dict(jobs=given.jobs, keep=keep) if given.what == "repeats" else {}
    keep(dict(repeats=repeats, start=start, cost=cost)[given.what](times, **options))


if __name__ == "__main__":
    main()
