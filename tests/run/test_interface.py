"""What the command line takes and leaves: notebooks, plans without a GPU, limits, old runs, what is no Python."""

import json
import os
import signal
import subprocess
import textwrap
import time

import pytest

from tests.support import plans
from tests.support.command import OOMPH, command

TRAINS = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    model(torch.zeros(64, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def notebook(path, *cells):
    """A notebook whose first cell is no code."""
    kinds = [("markdown", "# Title"), *(("code", cell) for cell in cells)]
    cells = [dict(cell_type=kind, source=textwrap.dedent(text)) for kind, text in kinds]
    path.write_text(json.dumps(dict(cells=cells, nbformat=4, nbformat_minor=5)))


def test_the_cells_of_a_notebook_run_in_one_process(tmp_path):
    notebook(
        tmp_path / "job.ipynb",
        "%matplotlib inline\nimport os, torch\nfirst = os.getpid()\n!nvidia-smi",
        "%%bash\necho never",
        "display(os.getpid() == first, __name__)\n%time kept = torch.zeros(1 << 20, device='cuda')",
        "def fill():\n    return torch.zeros(40 << 28, device='cuda')\n\nfill()",
    )
    done = command(
        tmp_path, "run", "--gpu", "t4", "--json", "out.json", "--no-measure", "job.ipynb"
    )
    assert done.returncode == 3, done.stderr
    assert "True __main__" in done.stdout and "never" not in done.stdout
    [left_out] = [line for line in done.stderr.splitlines() if "left out" in line]
    for what in ("%matplotlib inline (cell 2)", "!nvidia-smi (cell 2)", "%%bash (cell 3)"):
        assert what in left_out
    assert 'job.ipynb:cell 5", line 2, in fill\n    return torch.zeros(' in done.stderr
    assert (
        json.loads((tmp_path / "out.json").read_text())["oom"]["location"] == "job.ipynb:cell 5:2"
    )
    assert "job.ipynb:cell 5:2" in done.stdout


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("cut.py", b"import torch\nx = torch.zeros(\n", "cut.py:2: this is not valid Python"),
        ("wrong.py", b"import torch\nif True\n    pass\n", "wrong.py:2: this is not valid Python"),
        ("binary.py", b"\x7fELF\0\0\1\2", "binary.py: this is not valid Python"),
        ("latin.py", b"name = 'caf\xe9'\n", "latin.py:1: this is not valid Python"),
        ("cut.ipynb", b'{"cells": [{"cell_type"', "cut.ipynb: 1:23: not a Jupyter notebook"),
        (
            "wrong.ipynb",
            b'{"cells": [{"cell_type": "code", "source": "x ="}]}',
            "wrong.ipynb:cell 1:1: this is not valid Python",
        ),
        (
            "plan.toml",
            b"format = 'oomph.plan/1'\n",
            "plan.toml: this is no Python script. A plan stands",
        ),
    ],
)
def test_what_is_no_python_is_said_in_a_line(tmp_path, name, text, said):
    (tmp_path / name).write_bytes(text)
    done = command(tmp_path, "run", "--gpu", "t4", name)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {said}") and done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("name", ["no_such", "json.no_such", "no_such.at_all", "json.tool.no_such"])
def test_a_module_that_does_not_exist_is_said_in_a_line(tmp_path, name):
    done = command(tmp_path, "run", "--gpu", "t4", "-m", name)
    assert (done.returncode, done.stderr) == (2, f"error: there is no module {name}\n")


def test_a_module_that_lacks_another_fails_as_a_script(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text("import no_such_package\n")
    done = command(tmp_path, "run", "--gpu", "t4", "-m", "mine.job")
    assert done.returncode == 1
    assert "ModuleNotFoundError: No module named 'no_such_package'" in done.stderr


@pytest.mark.parametrize("name", ["run", "fit", "check"])
def test_a_place_for_json_that_cannot_be_written_is_said_before_the_run(tmp_path, name):
    (tmp_path / "job.py").write_text("open('ran', 'w')\n")
    (tmp_path / "oomph.toml").write_text('[job.one]\nscript = "job.py"\ngpu = "t4"\n')
    words = [] if name == "check" else ["--gpu", "t4", "job.py"]
    for place in ("nowhere/out.json", "."):
        done = command(tmp_path, name, "--json", place, *words)
        assert done.returncode == 2
        assert (
            done.stderr.startswith(f"error: cannot write {place}: ")
            and done.stderr.count("\n") == 1
        )
    assert not (tmp_path / "ran").exists()


def test_a_directory_that_may_not_be_written_is_said_before_the_run(tmp_path):
    (tmp_path / "job.py").write_text("open('ran', 'w')\n")
    (tmp_path / "given").mkdir(mode=0o500)
    words = [OOMPH, "run", "--gpu", "t4", "--json", "given/out.json", "job.py"]
    if os.geteuid() == 0:
        words = ["setpriv", "--bounding-set=-dac_override", *words]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    expected = "error: cannot write given/out.json: Permission denied (os error 13)\n"
    assert (done.returncode, done.stderr) == (2, expected)
    assert not (tmp_path / "ran").exists()


def test_a_script_that_ends_before_it_asks_for_the_gpu_still_has_its_name(tmp_path):
    (tmp_path / "job.py").write_text("import torch, no_such_package\n")
    done = command(tmp_path, "run", "--gpu", "t4", "job.py")
    assert done.returncode == 1, done.stderr
    assert "virtual Tesla T4 ·" in done.stdout


def test_a_search_for_a_script_without_torch_says_so(tmp_path):
    (tmp_path / "job.py").write_text("print('no torch')\n")
    done = command(tmp_path, "fit", "--gpu", "t4", "job.py")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "error: the script ended without importing torch: there is nothing to plan"
    )


def test_a_search_for_what_is_no_python_says_it_too(tmp_path):
    (tmp_path / "cut.py").write_text("x = (")
    done = command(tmp_path, "fit", "--gpu", "t4", "cut.py")
    assert done.returncode == 2
    assert done.stderr.startswith("error: cut.py:1: this is not valid Python"), done.stderr


def test_a_plan_brings_its_gpu_and_a_peak_has_a_limit(tmp_path):
    (tmp_path / "job.py").write_text("import torch\nx = torch.zeros(1 << 28, device='cuda')\n")
    allocator = ("allocator", dict(conf="expandable_segments:True"))
    plans.plan(tmp_path, allocator, head='[gpu]\nid = "rtx-3060"\nmemory_bytes = 8589934592')
    done = command(tmp_path, "run", "--plan", "plan.toml", "--max-peak", "2G", "job.py")
    assert done.returncode == 0, done.stderr
    assert "note: on rtx-3060, the GPU that the plan is for" in done.stderr
    assert "RTX 3060 · 8.0 GiB" in done.stdout
    done = command(tmp_path, "run", "--gpu", "t4", "--max-peak", "1000MiB", "job.py")
    assert done.returncode == 5
    assert "is above --max-peak 1000.0 MiB" in done.stderr


def test_the_newest_run_is_latest_and_old_ones_go(tmp_path):
    (tmp_path / "job.py").write_text("import torch\nx = torch.zeros(1 << 28, device='cuda')\n")
    reports = tmp_path / "oomph-report"
    for number in (1, 2):
        assert command(tmp_path, "run", "--gpu", "t4", "-q", "job.py").returncode == 0
        assert os.readlink(reports / "latest") == f"job-{number}"
    assert (reports / ".gitignore").read_text() == "*\n"
    for words in (
        ["explain", "oomph-report/latest"],
        ["replay", "oomph-report/latest"],
        ["report", "oomph-report/latest"],
        ["diff", "oomph-report/job-1", "oomph-report/latest"],
    ):
        done = command(tmp_path, *words)
        assert done.returncode == 0, done.stderr
    # What somebody keeps there stays, and so does the run that it lies in.
    (reports / "mine").mkdir()
    (reports / "job-1" / "notes.txt").write_text("mine")
    kept = command(tmp_path, "clean", "--dry-run")
    assert "would remove 2 directories" in kept.stdout, kept.stdout
    assert (reports / "job-2").exists()
    assert "nothing to remove" in command(tmp_path, "clean", "--older-than", "1h").stdout
    done = command(tmp_path, "clean")
    assert done.returncode == 0
    assert "oomph-report/job-2\n" in done.stdout and "removed 2 directories" in done.stdout
    assert "job-1 holds notes.txt, which oomph did not write" in done.stderr
    assert sorted(path.name for path in reports.iterdir()) == [".gitignore", "job-1", "mine"]
    (reports / "job-1" / "notes.txt").unlink()
    (reports / "mine").rmdir()
    command(tmp_path, "clean")
    assert not reports.exists()


def test_ctrl_c_ends_a_search_with_the_best_plan_so_far(tmp_path):
    # Steps slow enough that the first run of a plan has few of them.
    slow = "import time" + TRAINS + "    time.sleep(0.4)\n"
    (tmp_path / "job.py").write_text(slow)
    words = [OOMPH, "fit", "--gpu", "t4", "--memory", "450MiB", "--json", "fit.json", "job.py"]
    search = subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    # The first plan that was verified is run longer.
    began = time.monotonic()
    while not list(tmp_path.glob("oomph-report/job-1/plan-*-longer")):
        assert search.poll() is None and time.monotonic() < began + 120
        time.sleep(0.02)
    os.killpg(search.pid, signal.SIGINT)
    out, err = search.communicate(timeout=120)
    assert search.returncode == 130, err
    assert "the search ended early: interrupted" in out
    found = json.loads((tmp_path / "fit.json").read_text())
    assert (found["outcome"], found["stopped"]) == ("fits", "interrupted")
    assert found["plans"][found["chosen"]]["verified"]
    assert not any("failed" in row["why"] for row in found["rejected"])
    assert (tmp_path / "oomph-plan.toml").exists()
    assert command(tmp_path, "report", "oomph-report/latest").returncode == 0


@pytest.fixture
def running(tmp_path):
    """Starts a command in a process group of its own, and reads its errors up to some text."""
    started = []

    def start(*words, until):
        process = subprocess.Popen(
            [OOMPH, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )  # fmt: skip
        started.append(process)
        said = []
        while not said or until not in said[-1]:
            said.append(process.stderr.readline())
            assert said[-1], said
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_ctrl_c_between_two_runs_of_a_job_ends_it_with_what_is_known(tmp_path, running):
    (tmp_path / "my job.py").write_text(
        "import time, torch\nx = torch.zeros(20 << 30, dtype=torch.uint8, device='cuda')\ntime.sleep(1000)\n"
    )
    words = ["--color", "never", "run", "--gpu", "t4", "--out", "run", "my job.py"]
    job = running(*words, until="running again without a limit")
    os.killpg(job.pid, signal.SIGINT)
    out, err = job.communicate(timeout=100)
    assert job.returncode == 3, err
    assert "one request asked for 20.0 GiB, with up to" in out and "my job.py:2" in out
    assert "oomph fit --gpu t4 'my job.py'" in out


def test_ctrl_c_ends_a_check_and_not_only_one_of_its_jobs(tmp_path, running):
    wait = "import sys, time\nprint('waits', file=sys.stderr, flush=True)\ntime.sleep(1000)\n"
    (tmp_path / "wait.py").write_text(wait)
    (tmp_path / "oomph.toml").write_text(
        'gpu = "t4"\n[job.first]\nscript = "wait.py"\n[job.second]\nscript = "wait.py"\n'
    )
    check = running("check", until="waits")
    os.killpg(check.pid, signal.SIGINT)
    _, err = check.communicate(timeout=100)
    assert check.returncode == 130, err
    assert "interrupted in first: no verdict on any job" in err and "second" not in err


def test_a_script_from_standard_input_is_refused_in_a_line(tmp_path):
    done = command(tmp_path, "run", "--gpu", "t4", "-")
    assert done.returncode == 2
    assert "-: a script from standard input can be read only once" in done.stderr


def test_a_job_that_never_used_the_gpu_has_no_time_on_it(tmp_path):
    (tmp_path / "job.py").write_text(TRAINS.replace(".cuda()", "").replace(', device="cuda"', ""))
    done = command(tmp_path, "run", "--gpu", "t4", "--json", "out.json", "job.py")
    assert done.returncode == 0, done.stderr
    assert "the script used no GPU memory" in done.stdout and "a step" not in done.stdout
    assert json.loads((tmp_path / "out.json").read_text())["time"] is None


def test_a_search_without_time_has_no_verdict(tmp_path):
    (tmp_path / "job.py").write_text("import time\ntime.sleep(100)\n")
    done = command(tmp_path, "fit", "--gpu", "t4", "--max-time", "1s", "job.py")
    assert done.returncode == 4
    assert "the time of --max-time was up before the unchanged job had run once" in done.stderr


CALLS = """
import resource

def leaf():
    pass

def deeper(levels):
    for _ in range(200):
        leaf()
    if levels:
        deeper(levels - 1)

before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
deeper(700)
print("pages", resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_no_call_of_a_script_maps_memory_for_its_frame(oomph):
    run = oomph(CALLS)
    assert run.status == 0, run.err
    pages = int(run.out.split("pages ")[1].split()[0])
    assert pages < 150, "a call in a loop maps a piece of 16 KiB each time, since Python 3.11"
