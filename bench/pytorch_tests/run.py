"""Runs PyTorch's own CUDA memory tests on the virtual GPU.

    python bench/pytorch_tests/run.py --source PYTORCH [--oomph PATH] [--gpu h200] [--packages DIR]

PYTORCH is a checkout of pytorch with its `test` folder. The memory part of test_cuda.py runs: the
classes CLASSES whole, and of TestCuda the tests whose names match MEMORY; once with the native
allocator's segments and once with expandable ones. A test that ends its process counts as crashed,
one that takes over a minute as hung; the others go on. Results: results/virtual.json and the README's table.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLASSES = ("TestCudaMallocAsync", "TestBlockStateAbsorption", "TestMemPool")
MEMORY = re.compile(
    r"mem|alloc|oom|snapshot|pool|cache|caching|expandable|pinned|garbage|fraction|hist|storage",
    re.I,
)
PER_TEST_SECONDS = 60
BEGIN, END = "<!-- table by run.py -->", "<!-- end of table -->"


def collect(args: argparse.Namespace, environment: dict[str, str]) -> list[str]:
    out = pytest(args, environment, ["--collect-only", "-q", "test_cuda.py"])
    ids = [line for line in out.stdout.splitlines() if "::" in line]
    chosen = []
    for test in ids:
        _, owner, name = test.split("::")
        test = f"test_cuda.py::{owner}::{name}"
        if owner in CLASSES or (owner == "TestCuda" and MEMORY.search(name)):
            chosen.append(test)
    if not chosen:
        sys.exit(out.stdout[-3000:] + out.stderr[-3000:])
    return chosen


def pytest(args, environment, options, timeout=None):
    python = str(Path(args.oomph).parent / "python")
    return subprocess.run(
        [python, "-m", "pytest", "--rootdir=.", "-p", "vgpu_plugin", "-p", "no:cacheprovider", *options],
        cwd=args.source / "test", env=environment, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def settings(args: argparse.Namespace, scratch: Path) -> tuple[Path, Path]:
    """The virtual GPU's library and settings, as `oomph run` writes them."""
    script = scratch / "look.py"
    script.write_text(
        "import os, torch\nprint('LIBRARY', os.environ['LD_PRELOAD'].split(':')[0])\n"
    )
    out = subprocess.run(
        [args.oomph, "run", "--gpu", args.gpu, "--out", str(scratch / "out"), str(script)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return Path(re.search(r"LIBRARY (.*)", out)[1]), scratch / "out" / "virtual-gpu.conf"


def run(args, environment, tests: list[str], expandable: bool) -> dict[str, dict]:
    results: dict[str, dict] = {}
    log = Path(environment["VGPU_LOG"])
    environment = dict(environment, VGPU_EXPANDABLE="1" if expandable else "")
    left = list(tests)
    while left:
        log.write_text("")
        end = "crashed"
        process = None
        try:
            process = pytest(args, environment, ["-q", "--tb=short", *left], timeout=args.timeout)
        except subprocess.TimeoutExpired:
            end = "hung"
        begun = None
        for line in log.read_text().splitlines():
            event = json.loads(line)
            if event["what"] == "begin":
                begun = event["test"]
            else:
                results[event["test"]] = dict(outcome=event["what"], reason=event["reason"])
                begun = None
        if begun is not None:
            reason = ""
            if process is not None:
                reason = f"exit status {process.returncode}: {process.stderr.strip()[-300:]}"
                end = "hung" if "Timeout" in process.stderr else "crashed"
            results[begun] = dict(outcome=end, reason=reason)
        elif not any(test in results for test in left):
            sys.exit(process.stdout[-3000:] + process.stderr[-3000:] if process else "no test ran")
        left = [test for test in left if test not in results]
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--oomph", default="oomph")
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--packages", type=Path, help="a folder of further packages")
    parser.add_argument("--python-path", type=Path, help="another copy of the package oomph")
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--real", action="store_true", help="on this machine's GPU, for comparison")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "virtual.json")
    parser.add_argument("--only", default="", help="tests whose names match; results are not kept")
    args = parser.parse_args()
    args.source = args.source.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        library, config = ("", "") if args.real else settings(args, Path(scratch))
        path = [str(HERE), str(args.source.resolve())]
        path += [str(p.resolve()) for p in (args.python_path, args.packages) if p]
        if args.python_path and not args.real:
            library = args.python_path / "oomph" / "_vgpu" / library.name
        environment = dict(
            os.environ, LD_PRELOAD=str(library), OOMPH_VGPU=str(config),
            PYTHONPATH=os.pathsep.join(path), VGPU_LOG=str(Path(scratch) / "log"),
            VGPU_SECONDS=str(PER_TEST_SECONDS), PYTORCH_TESTING_DEVICE_ONLY_FOR="cuda",
        )  # fmt: skip
        if args.packages:
            environment["PATH"] = f"{args.packages.resolve()}/bin:{environment['PATH']}"
        tests = [test for test in collect(args, environment) if re.search(args.only, test)]
        results = {}
        for mode in ("native", "expandable"):
            results[mode] = run(args, environment, tests, mode == "expandable")
            counts = Counter(result["outcome"] for result in results[mode].values())
            print(mode, dict(counts))
            for test, result in results[mode].items():
                if result["outcome"] in ("failed", "crashed", "hung"):
                    print(
                        "  ", test, result["outcome"], result["reason"][:300].replace("\n", " | ")
                    )
    if not args.only:
        keep(args, results)


def keep(args: argparse.Namespace, results: dict) -> None:
    kept = dict(gpu="real" if args.real else args.gpu, results=results)
    text = json.dumps(kept, indent=1)
    for root in (args.source.resolve(), Path(args.oomph).resolve().parents[1]):
        text = re.sub(rf"{re.escape(str(root))}/(lib/python[^/]*/site-packages/)?", "", text)
    args.results.write_text(text + "\n")
    if args.real:
        return
    lines = [
        "| segments | tests | passed | skipped | failed | crashed | hung |",
        "| --- |" + " ---: |" * 6,
    ]
    for mode, rows in results.items():
        counts = Counter(row["outcome"] for row in rows.values())
        cells = [counts[kind] for kind in ("passed", "skipped", "failed", "crashed", "hung")]
        lines.append(f"| {mode} | {len(rows)} | {' | '.join(map(str, cells))} |")
    readme = HERE / "README.md"
    if readme.exists():
        before, _, rest = readme.read_text().partition(BEGIN)
        text = "\n".join(lines)
        readme.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
