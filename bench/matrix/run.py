"""Runs the smoke jobs on several versions of torch and Python: `make test-matrix`.

    python bench/matrix/run.py [--torch V…] [--pythons V…] [--wheel FILE] [--keep] [--report]

For each pair it makes a virtual environment under `.matrix/`, installs that torch and the oomph wheel
into it, looks for CUDA functions that the wheel needs and the virtual GPU lacks, and runs each job
through `oomph run --gpu h200`. An environment is about 5 GB and is removed when its results are kept,
unless `--keep`. With uv on the PATH, files are linked and not copied, which is much quicker.

`results/versions.json` holds the latest result of each pair; README.md gets its tables from it (`--report`
writes them without running anything). Exit status 1 if a job failed or a figure is off.
"""

import argparse
import datetime
import glob
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
RESULTS = os.path.join(HERE, "results", "versions.json")
README = os.path.join(HERE, "README.md")
ENVIRONMENTS = os.path.join(ROOT, ".matrix")
MEASURED = "2.11.0"  # the version that the figures of bench/accuracy were measured with
ALLOWED = "optimizer_step,chunked_cross_entropy,checkpoint,set_to_none"
LIMIT = 3600  # seconds of one job: torch.compile is slow on a busy machine

# name: folder under bench/, and what `oomph` is called with there, in a working directory of the job's own. {jobs} is the
# folder of the scripts, {torch} the release. The first three have a measured truth.
RUN = ["run", "--gpu", "h200", "--no-measure", "--quiet"]
JOBS = {
    "convolution": ("accuracy", [[*RUN, "{jobs}/vision.py", "unet_b8_256"]]),
    "transformer": ("accuracy", [[*RUN, "{jobs}/language.py", "gpt2_b8"]]),
    "recurrent": ("accuracy", [[*RUN, "{jobs}/recurrent.py", "lstm_lm"]]),
    "convolution, bf16": ("matrix", [[*RUN, "{jobs}/smoke.py", "residual_bf16"]]),
    "torch.compile": ("matrix", [[*RUN, "{jobs}/smoke.py", "compiled"]]),
    "interface": ("matrix", [[*RUN, "{jobs}/smoke.py", "interface"]]),
    "plan": ("matrix", [[*RUN, "--plan", "{jobs}/plan.toml", "{jobs}/smoke.py", "blocks"]]),
    "fit": (
        "matrix",
        [["fit", "--gpu", "h200", "--memory", "1.4GiB", "--quiet", "--allow", ALLOWED, "{jobs}/smoke.py", "blocks"]],
    ),
    "explain": (
        "matrix",
        [
            [*RUN, "{jobs}/smoke.py", "snapshot"],
            ["replay", "snapshot.pickle", "--torch", "{torch}"],
            ["explain", "snapshot.pickle", "--torch", "{torch}", "--no-report"],
        ],
    ),
    "TrainStep": ("matrix", [[*RUN, "--memory", "3GiB", "{jobs}/smoke.py", "train_step"]]),
    "ranks": (
        "matrix",
        [["run", "--gpu", "h200:2", "--no-measure", "--quiet", "{json}", "--", "torchrun", "--nproc-per-node", "2",
          "{jobs}/smoke.py", "ranks"]],
    ),
    "Trainer": ("matrix", [[*RUN, "--memory", "2GiB", "{jobs}/smoke.py", "trainer"]]),
}  # fmt: skip
# What torch itself refuses, and how: release, Python, job.
REFUSED = {
    ((2, 5), "3.13", "torch.compile"): "Dynamo is not supported on Python 3.13",
    ((2, 9), "3.14", "torch.compile"): "torch.compile is not supported on Python 3.14",
}
# Peaks of one job may differ by this much from those on the measured version.
CLOSE = {"allocated_bytes": 0.03, "reserved_bytes": 0.15}
# And on the measured version from the GPU's.
EXACT = {"allocated_bytes": 0.003, "reserved_bytes": 0.015}
# Those that differ by more, and README.md says why: from which release to which, on which Python (None: all), which jobs and peaks.
LAST = (99, 0)
REASONS = [
    # cuDNN before 9.10 takes no description of a GPU.
    ((2, 4), (2, 7), None, {"convolution"}, {"reserved_bytes"}),
    # No workspaces of cuBLAS are kept.
    ((2, 15), LAST, None, {*JOBS} - {"convolution"}, {*CLOSE}),
    # Trainer's optimizer is fused from 2.8 on.
    ((2, 4), (2, 7), None, {"Trainer"}, {"allocated_bytes"}),
    # The last release of transformers for these releases, and for this Python.
    ((2, 4), (2, 5), None, {"transformer", "Trainer"}, {*CLOSE}),
    ((2, 4), (2, 8), "3.9", {"transformer", "Trainer"}, {*CLOSE}),
]

NEEDED = re.compile(
    r"^(cuda[A-Z]|__cuda|cu[A-Z]|cublas|cudnn|cusparse|cusolver|cufft|curand|nccl|nvrtc|cuFile|cupti|nvshmem)"
)


def newest():
    """The newest release of torch on the package index."""
    text = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return re.search(r"torch \(([^)]+)\)", text)[1]


# The oldest and the newest Python of each release that has wheels on the index, from 3.9 on; later releases as the last.
PYTHONS = {
    (2, 4): ("3.9", "3.12"), (2, 5): ("3.9", "3.13"), (2, 9): ("3.10", "3.13"), (2, 15): ("3.11", "3.13"),
}  # fmt: skip

# The first release that the newest transformers takes.
TRANSFORMERS_5 = [2, 6]


def pythons(torch, asked):
    """The versions that are asked for, with those of a release for `oldest` and `newest`."""
    release = tuple(version_key(torch)[:2])
    ends = PYTHONS[max(first for first in PYTHONS if first <= release or first == min(PYTHONS))]
    named = dict(oldest=ends[0], newest=ends[1])
    return list(dict.fromkeys(named.get(version, version) for version in asked))


def interpreter(version):
    """A Python of `version` (3.12, or a path): from the PATH, or pyenv's; None if there is none."""
    if os.sep in version:
        return version
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    candidates = [
        shutil.which(f"python{version}"),
        *sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/python")),
    ]
    for path in filter(None, candidates):
        asked = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
        )
        if asked.returncode == 0 and asked.stdout.strip() == version:
            return path
    return None


def install(python, torch, wheel, place):
    """Make the environment `place`; returns its Python."""
    shutil.rmtree(place, ignore_errors=True)
    # Triton before 3.3 compiles with setuptools, which torch for Python before 3.12 does not ask for.
    packages = [f"torch=={torch}", "numpy", "accelerate", "setuptools", wheel]
    packages += ["transformers" if version_key(torch) >= TRANSFORMERS_5 else "transformers<5"]
    # And the torchrun of torch 2.6 and 2.7 imports this one in Python 3.9 without asking for it.
    packages += ["importlib_metadata"]
    own = os.path.join(place, "bin", "python")
    uv = shutil.which("uv")
    if uv:
        subprocess.run([uv, "venv", "-q", "--python", python, place], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", own, *packages], check=True)
    else:
        subprocess.run([python, "-m", "venv", place], check=True)
        subprocess.run([own, "-m", "pip", "install", "-q", "--no-compile", *packages], check=True)
    return own


def symbols(path, which):
    out = subprocess.run(
        ["nm", "-D", which, path], capture_output=True, text=True, check=True
    ).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines() if line.split()}


def missing(site):
    """CUDA functions that the wheel's libraries need and the virtual GPU does not define."""
    libraries = glob.glob(os.path.join(site, "torch", "lib", "*.so"))
    needed = set().union(*(symbols(path, "--undefined-only") for path in libraries))
    defined = symbols(os.path.join(site, "oomph", "_vgpu", "libcuda.so.1"), "--defined-only")
    needed = {name for name in needed if NEEDED.match(name)}
    return len(needed), sorted(needed - defined)


def run(place, job, torch):
    """One job: verdict, peaks, assumptions, seconds; or how it failed."""
    folder, commands = JOBS[job]
    began = time.perf_counter()
    answers = []
    with tempfile.TemporaryDirectory() as work:
        scripts = os.path.join(ROOT, "bench", folder, "jobs")
        for number, words in enumerate(commands):
            out = os.path.join(work, f"answer-{number}.json")
            words = [word.format(jobs=scripts, torch=torch, json="{json}") for word in words]
            at = words.index("{json}") if "{json}" in words else 1
            options = ["--json", out]
            if words[0] in ("run", "fit"):
                options += ["--out", os.path.join(work, f"run-{number}"), "--unsupported"]
            words[at : at + (words[at] == "{json}")] = options
            status, said = command(place, words, work)
            if status != 0 or not os.path.exists(out):
                seconds = round(time.perf_counter() - began, 1)
                lines = (failure(out) or said).strip().splitlines() or ["it said nothing"]
                return dict(status=status, seconds=seconds, failure=lines[-1])
            with open(out) as file:
                answers.append(json.load(file))
        row = dict(status=0, seconds=round(time.perf_counter() - began, 1))
        row.update(judge(job, answers, work))
    return row


def unlike_release(python, torch):
    """Names that this torch has and should not have, or the reverse, by the table of `oomph._torch_features`."""
    release = tuple(version_key(torch)[:2])
    code = f"""
from oomph import _torch_features as torch_features
print(*(name for name, feature in torch_features.FEATURES.items()
        if torch_features.has(name) is not feature.is_expected({release})),
      *(name for name in torch_features.NEEDED if torch_features.look_up(name) is None))
"""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def command(place, words, work):
    """Run `oomph` with these words: its status (None: no end), and the last it said."""
    own = os.path.join(place, "bin")
    caches = dict(
        TORCHINDUCTOR_CACHE_DIR=work + "/inductor",
        TRITON_CACHE_DIR=work + "/triton",
        TORCHINDUCTOR_COMPILE_THREADS="1",
        PATH=own + os.pathsep + os.environ["PATH"],
    )
    with open(os.path.join(work, "err"), "w+") as errors:
        process = subprocess.Popen(
            [os.path.join(own, "oomph"), *words], cwd=work, stdout=subprocess.DEVNULL, stderr=errors,
            env={**os.environ, **caches}, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the script too
            process.wait()
            return None, f"no end after {LIMIT} s"
        errors.seek(0)
        return process.returncode, errors.read()[-1500:]


def failure(out):
    """Why a run failed, as its answer says; None if there is none."""
    if not os.path.exists(out):
        return None
    with open(out) as file:
        return json.load(file).get("failure")


def judge(job, answers, work):
    """What a job's answers come to: verdict, peak, and what is wrong with them under `failure`."""
    found = answers[0]
    if job == "fit":
        chosen = [plan for plan in found["plans"] if plan["verified"]]
        row = dict(verdict=found["outcome"], peak=found["plain"], plans=len(found["plans"]))
        if not chosen or chosen[0]["peak"]["used_bytes"] > found["gpu"]["memory_bytes"]:
            row["failure"] = "no verified plan that fits"
        return row
    row = dict(
        verdict=found["verdict"],
        steps=found["step_count"],
        peak=found["peak"],
        by_category=found["by_category"],
        modules=len(found["modules"]),
        assumptions=sorted({f"{a['kind']}: {a['what']}" for a in found["assumptions"]}),
    )
    if found["verdict"] != "fits":
        row["failure"] = found.get("failure") or found["verdict"]
    if job == "plan":
        inert = [lever["name"] for lever in found["levers"] if not lever["applied"]]
        if inert:
            row["failure"] = f"had no effect: {', '.join(inert)}"
    if job == "explain":
        _, replay, explained = answers
        with open(os.path.join(work, "counted.json")) as file:
            counted = json.load(file)
        peaks = replay["peak_reserved_bytes"]
        if replay["mismatches"] or peaks["replayed"] != counted["reserved_bytes"]:
            row["failure"] = f"not replayed exactly: {replay['mismatches']} mismatches, {peaks}"
        elif peaks["predicted"] != counted["reserved_bytes"]:
            row["failure"] = f"not predicted exactly: {peaks}"
        elif not 0.98 < explained["peak"]["live_bytes"] / counted["allocated_bytes"] <= 1:
            row["failure"] = f"explained {explained['peak']['live_bytes']} of {counted}"
    return row


def pair(torch, python, wheel, leave, only):
    """All jobs on one torch and one Python."""
    path = interpreter(python)
    if path is None:
        return dict(
            torch=torch, python=python, failure=f"no Python {python} on the PATH or under pyenv"
        )
    place = os.path.join(ENVIRONMENTS, f"torch-{torch}-python-{python}")
    try:
        own = install(path, torch, wheel, place)
        facts = "import torch, sys, site, json; print(json.dumps(dict(cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version(), python_full=sys.version.split()[0], site=site.getsitepackages()[0])))"
        row = json.loads(
            subprocess.run([own, "-c", facts], capture_output=True, text=True, check=True).stdout
        )
        site = row.pop("site")
        row = dict(torch=torch, python=python, **row)
        row["functions"], row["missing"] = missing(site)
        row["unlike_release"] = unlike_release(own, torch)
        row["jobs"] = {}
        for job in only or JOBS:
            row["jobs"][job] = run(place, job, torch)
            said = row["jobs"][job].get("failure", "").strip().splitlines()[-1:]
            keep(dict(row, date=datetime.date.today().isoformat()))
            print(
                f"  {job:20} {row['jobs'][job].get('verdict', 'failed'):8} {row['jobs'][job].get('seconds')} s",
                *said,
                flush=True,
            )
    except subprocess.CalledProcessError as error:
        return dict(
            torch=torch,
            python=python,
            failure=f"{' '.join(error.cmd[:6])}…: {error.stderr or error}",
        )
    finally:
        if not leave:
            shutil.rmtree(place, ignore_errors=True)
    return row


def truth(case):
    with open(os.path.join(ROOT, "bench", "accuracy", "results", "h200.jsonl")) as file:
        rows = {row["case"]: row for row in map(json.loads, file)}
    row = rows.get(case)
    return row and {"allocated_bytes": row["max_allocated"], "reserved_bytes": row["max_reserved"]}


def release_of(row):
    return tuple(version_key(row["torch"])[:2])


def has_reason(row, job, key):
    """Whether README.md says why this peak is another than with the measured version."""
    return any(
        since <= release_of(row) <= until
        and python in (None, row["python"])
        and job in jobs
        and key in keys
        for since, until, python, jobs, keys in REASONS
    )


def problems(rows):
    """What is wrong with the results, one line each."""
    found = []
    measured = [row for row in rows if row["torch"] == MEASURED and "jobs" in row]
    first = {}
    for row in rows:
        name = f"torch {row['torch']}, Python {row['python']}"
        if "failure" in row:
            found.append(f"{name}: {row['failure']}")
            continue
        if row["missing"]:
            found.append(f"{name}: missing functions {', '.join(row['missing'])}")
        if row.get("unlike_release"):
            found.append(f"{name}: unlike its release: {', '.join(row['unlike_release'])}")
        left = [job for job in JOBS if job not in row["jobs"]]
        if left:
            found.append(f"{name}: not run: {', '.join(left)}")
        for job, result in row["jobs"].items():
            if "failure" in result or result.get("status") != 0:
                refused = REFUSED.get((release_of(row), row["python"], job))
                if refused and refused in result.get("failure", ""):
                    continue
                found.append(f"{name}: {job} failed: {result.get('failure', result.get('status'))}")
                continue
            other = first.setdefault((row["torch"], job), row)
            differs = any(
                result["peak"][key] != other["jobs"][job]["peak"][key]
                and not (has_reason(row, job, key) or has_reason(other, job, key))
                for key in CLOSE
            )
            if differs and job != "torch.compile":
                found.append(f"{name}: {job} has other peaks than with Python {other['python']}")
            references = (
                [("torch " + MEASURED, measured[0]["jobs"][job].get("peak"), CLOSE)]
                if measured and job in measured[0]["jobs"]
                else []
            )
            if row["torch"] == MEASURED and JOBS[job][0] == "accuracy":
                references.append(("the GPU", truth(JOBS[job][1][0][-1]), EXACT))
            for against, reference, limits in references:
                for key, limit in limits.items():
                    off = result["peak"][key] / reference[key] - 1 if reference else 0
                    if abs(off) > limit and not has_reason(row, job, key):
                        found.append(f"{name}: {job} {key} is {off:+.1%} off {against}")
    return found


def version_key(text):
    return [int(part) for part in re.findall(r"\d+", text)]


def tables(rows):
    """The results as Markdown: what passed, and the peaks by version."""
    lines = [
        "| torch | CUDA | cuDNN | Python | functions needed, missing | jobs passed | seconds |",
        "| --- | --- | --- | --- | ---: | ---: | ---: |",
    ]
    for row in rows:
        if "failure" in row:
            lines.append(
                f"| {row['torch']} | | | {row['python']} | | failed: {row['failure'][:80]} | |"
            )
            continue
        passed = sum(
            result.get("status") == 0 and "failure" not in result for result in row["jobs"].values()
        )
        seconds = sum(result.get("seconds", 0) for result in row["jobs"].values())
        lines.append(
            f"| {row['torch']} | {row['cuda']} | {row['cudnn']} | {row['python_full']} | {row['functions']}, {len(row['missing'])} | {passed} of {len(JOBS)} | {seconds:.0f} |"
        )
    versions = {}
    for row in rows:
        if "jobs" in row and len(row["jobs"]) > len(
            versions.get(row["torch"], row | {"jobs": ()})["jobs"]
        ):
            versions[row["torch"]] = row
    base = versions.get(MEASURED)
    lines += [
        "",
        "| job | " + " | ".join(f"torch {version}" for version in versions) + " |",
        "| --- |" + " ---: |" * len(versions),
    ]
    mib = lambda value: f"{value / 2**20:,.1f}"
    for job in JOBS:
        cells = []
        for row in versions.values():
            peak = row["jobs"].get(job, {}).get("peak")
            if peak is None:
                cells.append("failed" if job in row["jobs"] else "not run")
                continue
            text = f"{mib(peak['allocated_bytes'])} / {mib(peak['reserved_bytes'])}"
            if base and row is not base and "peak" in base["jobs"].get(job, {}):
                against = base["jobs"][job]["peak"]
                text += " ({:+.1%} / {:+.1%})".format(
                    *(peak[key] / against[key] - 1 for key in ("allocated_bytes", "reserved_bytes"))
                )
            cells.append(text)
        lines.append(f"| {job} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(rows):
    with open(README) as file:
        text = file.read()
    marks = "<!-- tables by run.py -->", "<!-- end -->"
    begin, end = text.index(marks[0]) + len(marks[0]), text.index(marks[1])
    with open(README, "w") as file:
        file.write(text[:begin] + "\n" + tables(rows) + "\n" + text[end:])
    found = problems(rows)
    print(*found, sep="\n")
    return 1 if found else 0


def results():
    """The pairs that were run, in order of version."""
    if not os.path.exists(RESULTS):
        return []
    with open(RESULTS) as file:
        return json.load(file)["pairs"]


def keep(row):
    """Put a pair's row in place of its older one; jobs that were not run again keep their result."""
    rows = results()
    key = row["torch"], row["python"]
    for old in rows:
        if (old["torch"], old["python"]) == key and "jobs" in old and "jobs" in row:
            row["jobs"] = {
                job: {**old["jobs"], **row["jobs"]}.get(job)
                for job in JOBS
                if job in {**old["jobs"], **row["jobs"]}
            }
    rows = [old for old in rows if (old["torch"], old["python"]) != key] + [row]
    rows.sort(key=lambda row: (version_key(row["torch"]), version_key(row["python"])))
    with open(RESULTS, "w") as file:
        machine = f"{platform.machine()}, {os.cpu_count()} cores that others used too, no GPU"
        json.dump(dict(machine=machine, gpu="virtual H200", pairs=rows), file, indent=1)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", nargs="*", default=[MEASURED, "newest"])
    parser.add_argument("--pythons", nargs="*", default=["oldest", "newest"])
    parser.add_argument("--wheel", default=None, help="the oomph wheel; the one in dist/ otherwise")
    parser.add_argument("--jobs", nargs="*", choices=list(JOBS), help="only these")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument(
        "--report", action="store_true", help="only write the tables of the results that are there"
    )
    args = parser.parse_args()
    if args.report:
        return report(results())
    wheels = [args.wheel] if args.wheel else glob.glob(os.path.join(ROOT, "dist", "*.whl"))
    if len(wheels) != 1:
        parser.error(f"one wheel is needed, {len(wheels)} are in dist/: run make build")
    for torch in dict.fromkeys(
        newest() if version == "newest" else version for version in args.torch
    ):
        for python in pythons(torch, args.pythons):
            print(f"torch {torch}, Python {python}", flush=True)
            row = pair(torch, python, os.path.abspath(wheels[0]), args.keep, args.jobs)
            if "failure" in row:
                keep(row)
    return report(results())


if __name__ == "__main__":
    sys.exit(main())
