"""Runs other projects' GPU tests, on the machine's GPU or on a virtual one.

    python bench/testing/others/run.py run --on h200 --choose --sources DIR
    python bench/testing/others/run.py run --on virtual --sources DIR
    python bench/testing/others/run.py table

DIR has a folder for each project of slices.toml: its sources, at the version named there. `--choose` collects each project's tests and
keeps those that the slice says, at most so many, evenly spaced: results/tests.json. `run` runs them, each project in processes of its own; a
test that ends its process counts as crashed, one that takes longer than `--seconds` as hung, and the others go on. `--on h200` is a real
GPU, `virtual` the virtual H200 whose large floats nobody computes, `computed` the one that computes them. `table` compares.
"""

import argparse
import concurrent.futures
import datetime
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
ON = dict(
    h200=[],
    virtual=["--oomph-gpu", "h200", "--oomph-compute", "none"],
    computed=["--oomph-gpu", "h200"],
)
"""pytest's options for each machine."""


def slices() -> dict[str, dict]:
    return tomllib.loads((HERE / "slices.toml").read_text())


def pytest(given, name: str, options: list[str], log: Path, timeout: float | None = None):
    """Run pytest in a project's folder."""
    about = slices()[name]
    paths = [str(HERE), *(str(HERE / path) for path in about.get("python_path", []))]
    environment = {
        **os.environ, **about.get("environment", {}), "OTHERS_LOG": str(log), "OTHERS_SECONDS": str(given.seconds),
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", "--rootdir=.", "-o", "addopts=", "-p", "recorded", "-p", "no:cacheprovider",
         *about.get("options", []), *options],
        cwd=given.sources / about.get("sources", name) / about.get("folder", "."), env=environment, capture_output=True, text=True,
        errors="replace", timeout=timeout,
    )  # fmt: skip


def choose(given, name: str) -> list[str]:
    """The tests of a slice, in the order of its files."""
    about, found = slices()[name], []
    options = ["--collect-only", "--continue-on-collection-errors", *about["files"]]
    done = pytest(given, name, [*ON[given.on], *options], Path(os.devnull))
    lines, counts = done.stdout.splitlines(), []
    for file in about["files"]:
        tests = [line for line in lines if line.startswith(file + "::")]
        tests = [test for test in tests if re.search(about.get("choose", ""), test)]
        kept = min(len(tests), math.ceil(about["most"] / len(about["files"])))
        counts.append(f"{file} {kept} of {len(tests)}")
        found += [tests[len(tests) * at // kept] for at in range(kept)]
    print(name, *counts, sep="\n  ", flush=True)
    print(
        *(line for line in lines if line.startswith("E  ")),
        done.stderr[-500:] if not found else "",
        sep="\n",
    )
    return found


def run(given, name: str, tests: list[str], end: float) -> dict[str, dict]:
    """What became of each test of a project, until `end`."""
    found: dict[str, dict] = {}
    left = list(tests)
    with tempfile.TemporaryDirectory() as place:
        log, arguments = Path(place, "log"), Path(place, "tests")
        while left and (rest := end - time.monotonic()) > 1:
            log.write_text("")
            arguments.write_text("\n".join(left))
            process = None
            try:
                process = pytest(given, name, [*ON[given.on], f"@{arguments}"], log, rest)
            except subprocess.TimeoutExpired:
                pass
            begun = None
            for line in log.read_text().splitlines():
                event = json.loads(line)
                test, what = event.pop("test"), event.pop("what")
                if what == "begin":
                    begun = test
                elif what == "end":
                    found.setdefault(test, {}).update(event)
                    begun = None
                elif found.get(test, {}).get("outcome") != "failed":
                    found[test] = dict(outcome=what, **event)
            if process is None:
                break
            if begun is not None:
                stacks = Path(f"{log}.stacks").read_text()
                what = "hung" if stacks else "crashed"
                reason = stacks or f"exit status {process.returncode}: {process.stderr[-2000:]}"
                found[begun] = dict(outcome=what, reason=reason)
            elif not any(test in found for test in left):
                reason = (process.stdout + process.stderr)[-2000:]
                found.update((test, dict(outcome="not collected", reason=reason)) for test in left)
            before, left = left, [test for test in left if test not in found]
            if len(left) == len(before):
                break
    return found


def run_all(given, chosen: dict[str, list[str] | None]) -> dict[str, dict[str, dict]]:
    """Run tests in `given.jobs` processes, `given.each` of a project at a time; those of None are chosen first."""
    end = time.monotonic() + given.limit
    found: dict[str, dict[str, dict]] = {name: {} for name in chosen}
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        todo = {}

        def start(name, tests):
            for at in range(0, len(tests), given.each):
                todo[pool.submit(run, given, name, tests[at : at + given.each], end)] = name

        for name, tests in chosen.items():
            if tests is None:
                todo[pool.submit(choose, given, name)] = name
            else:
                start(name, tests)
        while todo:
            for part in concurrent.futures.wait(todo, return_when="FIRST_COMPLETED").done:
                name, result = todo.pop(part), part.result()
                if isinstance(result, list):
                    chosen[name] = result
                    start(name, result)
                else:
                    found[name].update(result)
                    keep(given, found)
    return found


def keep(given, found) -> None:
    """Write what is known so far, without the paths of this machine."""
    about = dict(
        on=given.on, date=datetime.date.today().isoformat(), command=" ".join(sys.argv[1:])
    )
    text = json.dumps(dict(about, results=found), indent=1)
    for path, name in (
        (given.sources, "SOURCES"),
        (Path(sys.prefix), "PYTHON"),
        (Path.home(), "HOME"),
    ):
        text = text.replace(str(path.resolve()), name)
    given.out.write_text(text + "\n")


def expected(part: str) -> dict[str, list[str]]:
    """The chosen tests that use the GPU and pass on the H200, of every fifth file (`last`), of the others (`first`), or all."""
    truth = json.loads((RESULTS / "h200.json").read_text())["results"]
    chosen = json.loads((RESULTS / "tests.json").read_text())

    def counts(name, test):
        result = truth[name].get(test, {})
        return result.get("outcome") == "passed" and (
            result.get("gpu") or name.startswith("pytorch")
        )

    found = {name: [t for t in tests if counts(name, t)] for name, tests in chosen.items()}
    files = sorted({(name, test.split("::")[0]) for name, tests in found.items() for test in tests})
    last = set(files[4::5])
    wanted = dict(all=set(files), last=last, first=set(files) - last)[part]
    return {
        name: [t for t in tests if (name, t.split("::")[0]) in wanted]
        for name, tests in found.items()
    }


def table() -> None:
    """Of what passes on the H200, how much passes without one."""
    truth = json.loads((RESULTS / "h200.json").read_text())["results"]
    chosen = json.loads((RESULTS / "tests.json").read_text())
    ways = [way for way in ("computed", "virtual") if (RESULTS / f"{way}.json").exists()]
    found = {way: json.loads((RESULTS / f"{way}.json").read_text())["results"] for way in ways}
    print("| slice | chosen | pass on the H200 | and use it | " + " | ".join(ways) + " |")
    print("| --- |" + " ---: |" * (3 + len(ways)))
    for name, tests in expected("all").items():
        passed = sum(r["outcome"] == "passed" for r in truth[name].values())
        cells = [passing(found[way].get(name, {}), tests) for way in ways]
        print(f"| {name} | {len(chosen[name])} | {passed} | {len(tests)} | {' | '.join(cells)} |")


def passing(results: dict[str, dict], tests: list[str]) -> str:
    """How many of `tests` passed, of those that ran."""
    ran = [
        results[t]["outcome"]
        for t in tests
        if results.get(t, {}).get("outcome", "not run") != "not run"
    ]
    return f"{ran.count('passed')} of {len(ran)}" if ran else "not run"


def counts(results: dict[str, dict]) -> str:
    return ", ".join(
        f"{n} {what}" for what, n in Counter(r["outcome"] for r in results.values()).most_common()
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--on", choices=list(ON), default="computed")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--project", action="append", help="only this one")
    parser.add_argument(
        "--again", action="store_true", help="run what did not pass once more, and keep the better"
    )
    parser.add_argument("--tests", type=Path, default=RESULTS / "tests.json")
    parser.add_argument("--choose", action="store_true", help="choose the tests first")
    parser.add_argument(
        "--part",
        choices=["first", "last", "all"],
        help="only what passes on the H200; the last is every fifth file",
    )
    parser.add_argument("--only", default="", help="only tests that match")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--each", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60, help="the limit of a test")
    parser.add_argument("--limit", type=float, default=7200, help="the limit of all, in seconds")
    given = parser.parse_args()
    given.out = given.out or RESULTS / f"{given.on}.json"
    if given.what == "table":
        return table()
    if given.choose:
        chosen = dict.fromkeys(given.project or slices())
    else:
        chosen = json.loads(given.tests.read_text())
        chosen = {name: chosen[name] for name in given.project or chosen}
        chosen = {n: [t for t in tests if re.search(given.only, t)] for n, tests in chosen.items()}
    if given.part:
        wanted = expected(given.part)
        chosen = {name: [t for t in tests if t in wanted[name]] for name, tests in chosen.items()}
    before = json.loads(given.out.read_text())["results"] if given.again else {}
    if given.again:
        chosen = {
            name: [
                t
                for t in tests
                if before.get(name, {}).get(t, {}).get("outcome", "") not in ("passed", "skipped")
            ]
            for name, tests in chosen.items()
        }
        out, given.out = given.out, given.out.with_suffix(".again.json")
    found = run_all(given, chosen)
    if given.choose:
        given.tests.write_text(json.dumps(chosen, indent=1) + "\n")
    if given.again:
        given.out = out
        for name, tests in found.items():
            for test, result in tests.items():
                if result["outcome"] == "passed" or test not in before.get(name, {}):
                    before.setdefault(name, {})[test] = dict(result, again=True)
        found = before
        keep(given, found)
    for name, results in found.items():
        print(name, counts(results))
    return None


if __name__ == "__main__":
    main()
