"""`oomph run --fit`: one command that rehearses, plans if that is needed, and runs; on a virtual GPU, and on one that
stands for a real one with its driver.
"""

import json
import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest

from tests.support import schemas
from tests.support.command import BIN, OOMPH, Run
from tests.support.jobs import TRAIN
from tests.support.machine import machine_with

PACKAGE = Path(BIN).parent / "lib"
MEMORY = 3 << 30


@pytest.fixture
def run_fit(tmp_path, monkeypatch):
    """`run_fit(*options)`: `oomph run --fit` on `script.py`, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "script.py").write_text(textwrap.dedent(TRAIN))

    def run(*options, gpu="rtx-3060", script=("script.py",), env=None):
        chosen = ["--gpu", gpu] if gpu else []
        done = subprocess.run(
            [OOMPH, "run", "--fit", *chosen, "--json", "result.json", *map(str, options), *script],
            cwd=tmp_path, capture_output=True, text=True, timeout=600, env={**os.environ, **(env or {})},
        )  # fmt: skip
        found = Run(done, tmp_path)
        if found.json:
            (tmp_path / "result.json").unlink()
        said = [line for line in found.err.splitlines() if line.startswith("oomph: ")]
        found.line = said[0] if said else ""
        return found

    run.place = tmp_path
    return run


def plans(place):
    """The file of the job in the cache."""
    (path,) = (place / "cache" / "oomph" / "plans").iterdir()
    return path


def rehearsals(place):
    """How many searches were made, each in a directory of its own."""
    return len(list(place.glob("oomph-report/*/plain")))


def test_what_is_planned_once_is_used_again_and_corrected_by_what_runs_used(run_fit):
    place = run_fit.place
    options = ("--memory", MEMORY, "--allow", "micro_batch", "--steps", 4)
    first = run_fit(*options)
    assert first.status == 0, first.err
    assert first.line.startswith("oomph: with "), first.err
    assert "GiB of 3.0 GiB free, about " in first.line and "known" not in first.line
    fitted = first.json["fit"]
    assert fitted["answer"] == "planned" and fitted["free_bytes"] == MEMORY
    assert fitted["planned"]["used_bytes"] <= fitted["planned_for_bytes"] <= MEMORY
    # The real run was made with the plan, at the capacity, and came to what was planned.
    assert first.json["levers"] and all(lever["applied"] for lever in first.json["levers"])
    assert first.json["step_count"] == 4 and first.json["verdict"] == "fits"
    assert first.json["peak"]["used_bytes"] == pytest.approx(
        fitted["planned"]["used_bytes"], rel=0.02
    )
    assert first.json["plan"]["planned"]["used_bytes"] == fitted["planned"]["used_bytes"]
    assert rehearsals(place) == 1

    kept = schemas.read(plans(place).read_text())
    (run,) = kept["runs"]
    assert run["machine"] == "virtual rtx-3060" and not kept["started"]
    assert run["used_bytes"] == first.json["peak"]["used_bytes"]
    assert run["reserved_bytes"] + run["outside_bytes"] == run["used_bytes"]
    assert run["step_seconds"] > 0
    assert (plans(place).stat().st_mode & 0o777) == 0o600
    names = [Path(name).name for name in kept["entries"][0]["sources"]]
    assert names == ["script.py"]

    # A little less is free, and no time for a search.
    second = run_fit("--memory", MEMORY - (20 << 20), *options[2:])
    assert second.status == 0, second.err
    assert "known from an earlier search; last real run used " in second.line
    assert (
        rehearsals(place) == 1 and second.json["fit"]["last_run"]["used_bytes"] == run["used_bytes"]
    )

    # The last run needed so much more that the plan would not fit: another is made for so much less.
    needed = kept["entries"][0]["peak"]["used_bytes"]
    more = kept["entries"][0]["memory_bytes"] - needed + (64 << 20)
    kept = json.loads(plans(place).read_text())
    kept["runs"][-1]["used_bytes"] = needed + more
    plans(place).write_text(json.dumps(kept))
    third = run_fit(*options)
    assert third.status == 0, third.err
    assert rehearsals(place) == 2 and "more than planned" in third.line
    assert third.json["fit"]["planned_for_bytes"] <= kept["entries"][0]["memory_bytes"] - more
    assert third.json["fit"]["planned"]["used_bytes"] < needed


def test_a_job_that_fits_runs_as_it_is(run_fit):
    place = run_fit.place
    (place / "widths.py").write_text("WIDTH = 64\n")
    (place / "settings.json").write_text('{"steps": 3}')
    (place / "script.py").write_text(
        textwrap.dedent("""
            import json
            import torch
            import widths
            steps = json.load(open("settings.json"))["steps"]
            model = torch.nn.Linear(widths.WIDTH, widths.WIDTH).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(steps):
                model(torch.randn(8, widths.WIDTH, device="cuda")).sum().backward()
                optimizer.step()
        """)
    )
    first = run_fit()
    assert first.status == 0, first.err
    assert first.line.startswith("oomph: fits as it is: "), first.line
    assert first.json["fit"]["answer"] == "as_it_is" and first.json["plan"] is None
    sources = json.loads(plans(place).read_text())["entries"][0]["sources"]
    assert {Path(name).name for name in sources} == {"script.py", "settings.json", "widths.py"}
    # Much more is free, and the job fits all the same.
    again = run_fit(gpu="rtx-3060", script=("script.py",))
    assert "known from an earlier search" in again.line and rehearsals(place) == 1
    # What it imports has changed.
    (place / "widths.py").write_text("WIDTH = 65\n")
    changed = run_fit()
    assert "known" not in changed.line and rehearsals(place) == 2
    # A damaged file is one line, and a new plan in its place.
    plans(place).write_text('{"format": "oomph.plans/1", "entr')
    damaged = run_fit()
    assert damaged.status == 0 and rehearsals(place) == 3
    assert "this is no file of plans (EOF" in damaged.line and "planning anew" in damaged.line
    assert sum("no file of plans" in line for line in damaged.err.splitlines()) == 1
    assert len(json.loads(plans(place).read_text())["entries"]) == 1
    anew = run_fit("--no-cache")
    assert "known" not in anew.line and rehearsals(place) == 4
    # A run whose command was killed left a record: the next command takes it into account.
    kept = json.loads(plans(place).read_text())
    run = max(place.glob("oomph-report/*"), key=lambda path: path.stat().st_mtime_ns)
    kept["runs"], kept["started"] = (
        [],
        [dict(machine="virtual rtx-3060", directory=str(run), free_bytes=12 << 30,
              planned=kept["entries"][0]["peak"])],
    )  # fmt: skip
    plans(place).write_text(json.dumps(kept))
    assert "last real run used" in run_fit().line
    assert rehearsals(place) == 4


def test_nothing_fits_and_nothing_is_started(run_fit):
    options = ("--memory", "500MiB", "--allow", "set_to_none")
    found = run_fit(*options)
    assert found.status == 3 and found.json is None
    assert found.line.startswith("oomph: nothing found that fits: floor "), found.err
    assert len(found.err.strip().splitlines()) == 1
    runs = sorted(path.name for path in run_fit.place.glob("oomph-report/script-*"))
    assert runs == ["script-1"]
    again = run_fit(*options)
    assert again.status == 3 and "known from an earlier search" in again.line
    late = run_fit("--memory", "1400MiB", "--max-time", "1s")
    assert late.status == 4 and "nothing was started" in late.line


def test_a_script_that_fails_is_not_started_again(run_fit):
    (run_fit.place / "script.py").write_text("import torch\nraise ValueError('no data')\n")
    found = run_fit()
    assert found.status == 1 and "no data" in found.err
    assert not list(run_fit.place.glob("oomph-report/script-2"))


def test_ctrl_c_ends_the_search_and_nothing_is_started(run_fit, started):
    (run_fit.place / "script.py").write_text("import time\ntime.sleep(60)\n")
    command = subprocess.Popen(
        [OOMPH, "run", "--fit", "--gpu", "rtx-3060", "script.py"], cwd=run_fit.place,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(run_fit.place.glob("oomph-report/script-1/plain/settings.json")):
        assert time.monotonic() < deadline and command.poll() is None
        time.sleep(0.05)
    time.sleep(1)
    began = time.monotonic()
    os.killpg(command.pid, signal.SIGINT)
    _, said = command.communicate(timeout=60)
    assert time.monotonic() - began < 30  # the script would sleep for 60
    assert command.returncode == 130, said
    assert said.strip() == "oomph: interrupted before a plan was known: nothing was started"
    assert not list(run_fit.place.glob("oomph-report/script-2"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--fit", "--plan", "p.toml", "script.py"], "cannot be used with '--plan"),
        (["--fit", "--gpu", "t4"], "no script was given"),
        (["--fit", "script.py"], "no GPU whose driver can be asked"),
        (["--fit", "--memory", "8GiB", "script.py"], "--memory is the capacity of a virtual GPU"),
        (["--gpu", "t4", "--max-time", "3s", "script.py"], "--fit"),
        (["--gpu", "t4", "--allow", "checkpoint", "script.py"], "--fit"),
        (["--fit", "--gpu", "t4", "--allow", "magic", "script.py"], "there is no lever magic"),
        (["--fit", "--gpu", "t4", "--margin", "100%", "script.py"], "--margin 100%"),
        (
            ["--fit", "--gpu", "t4", "--world-size", "8", "script.py"],
            "cannot be used with '--world-size",
        ),
    ],
)
def test_wrong_input_is_one_line(run_fit, options, expected):
    done = subprocess.run(
        [OOMPH, "run", *options], cwd=run_fit.place, capture_output=True, text=True
    )
    assert done.returncode == 2
    first = done.stderr.splitlines()[0]
    assert first.startswith("error: "), done.stderr
    assert expected in " ".join(done.stderr.split()), done.stderr
    assert not (run_fit.place / "oomph-report").exists()


def test_a_plan_in_the_environment_is_refused_too(run_fit):
    found = run_fit(env={"OOMPH_PLAN": "p.toml"})
    assert found.status == 2 and "--plan" in found.err


RANKS = """
    import os
    import torch
    import torch.distributed as dist
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2048, 2048).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        model(torch.randn(8, 2048, device="cuda")).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""


def test_ranks_of_a_launcher_are_rehearsed_but_not_planned(run_fit):
    (run_fit.place / "script.py").write_text(textwrap.dedent(RANKS))
    launch = ("--", "torchrun", "--standalone", "--nproc-per-node", "2", "script.py")
    found = run_fit(gpu="t4:2", script=launch)
    assert found.status == 0, found.err
    assert found.line.startswith("oomph: fits as it is: ") and len(found.json["ranks"]) == 2
    short = run_fit("--memory", "300MiB", gpu="t4:2", script=launch)
    assert short.status == 3, short.err
    assert "as it is; ranks of a launcher are not planned" in short.line


@pytest.fixture
def driver(tmp_path):
    """`driver(gpu)`: the environment of a machine with a GPU and its driver."""
    return lambda gpu, text_of=str: machine_with(gpu, tmp_path, text_of)


def test_the_driver_says_which_gpu_it_is_and_what_is_free(run_fit, driver, started):
    machine = driver("rtx-3060")
    found = run_fit("--steps", 3, gpu=None, env=machine)
    assert found.status == 0, found.err
    assert found.line.startswith("oomph: fits as it is: ") and "of 11.6 GiB free" in found.line
    assert found.json["gpu"]["name"] == "NVIDIA GeForce RTX 3060"
    assert not found.json["gpu"]["virtual"]
    (run,) = json.loads(plans(run_fit.place).read_text())["runs"]
    assert run["machine"].startswith("GPU-") and run["step_seconds"] > 0
    assert run["used_bytes"] == found.json["peak"]["used_bytes"]
    again = run_fit("--steps", 3, gpu=None, env=machine)
    assert "known from an earlier search; last real run used" in again.line


GROWS = """
    import os, torch
    layer = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        layer(torch.randn(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    # What no rehearsal saw.
    if os.environ.get("OOMPH_NET"):
        torch.empty(12 << 30, dtype=torch.uint8, device="cuda")
    print("net:", os.environ.get("OOMPH_NET"))
"""


def test_on_a_gpu_the_net_is_there_and_the_next_plan_knows_that_it_was_needed(
    run_fit, driver, started
):
    (run_fit.place / "script.py").write_text(textwrap.dedent(GROWS))
    # This machine's memory ends.
    machine = driver("rtx-3060", lambda text: text.replace(str(2**63), str(12 << 30)))
    without = run_fit("--no-net", gpu=None, env=machine)
    assert without.status == 0 and "net: None" in without.out, without.err
    found = run_fit(gpu=None, env=machine)
    assert found.status == 0 and "net: on" in found.out, found.err
    assert "known from an earlier search" in found.line
    assert "oomph: net: GPU memory ran out, and the job goes on" in found.err
    *_, run = json.loads(plans(run_fit.place).read_text())["runs"]
    assert run["out_of_memory"] and run["used_bytes"] > 12 << 30
    (assumed,) = [one for one in found.json["assumptions"] if one["kind"] == "net"]
    assert "lay in host memory" in assumed["what"]


def test_a_gpu_that_the_catalogue_lacks_is_rehearsed_by_its_like(run_fit, driver, started):
    def rename(text):
        return text.replace("NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 3065 Q")

    # The script ends before it imports torch: what matters is where it is rehearsed.
    (run_fit.place / "script.py").write_text("raise SystemExit(5)\n")
    found = run_fit(gpu=None, env=driver("rtx-3060", rename))
    assert found.status == 1 and "exit status: 5" in found.err, found.err
    assert "note: the catalogue has no NVIDIA GeForce RTX 3065 Q" in found.err
    (conf,) = run_fit.place.glob("oomph-report/script-*/plain/virtual-gpu.conf")
    assert "name=NVIDIA GeForce RTX 3065 Q\n" in conf.read_text()
    assert (
        "rate.fp16=25475072000000\n" in conf.read_text()
    )  # which only the catalogue knows, of the RTX 3060
