"""On a real GPU the recorder leaves once steps are alike. The virtual GPU stands in for it: the recorder is told that it
is a real one."""

import json
import os
import textwrap

import pytest

from tests.support.command import ROOT

PROTOCOL = os.path.join(ROOT, "crates/oomph-job/tests/protocol.json")

OUTER = """
import os, subprocess, sys

environment = {k: v for k, v in os.environ.items() if not k.startswith("OOMPH_R") and k != "PYTHONPATH"}
environment["OOMPH_RUN"] = "real/settings.json"
sys.exit(subprocess.run([sys.executable, "-m", "oomph.launch", "job.py"], env=environment).returncode)
"""

JOB = """
import os, signal
import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
optimizers = []

def step(batch=64):
    if not optimizers:
        optimizers.append(torch.optim.AdamW(net.parameters()))
    optimizer = optimizers[0]
    net(torch.randn(batch, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

def hooked():
    return bool(nn.modules.module._global_forward_hooks) or torch._C._dispatch_tls_is_dispatch_key_included("Fake")
"""


@pytest.fixture
def real(tmp_path, oomph):
    """Runs a job as on a real GPU; returns its output and its record."""

    def run(code, **settings):
        directory = tmp_path / "real"
        directory.mkdir(exist_ok=True)
        with open(PROTOCOL) as file:
            given = json.load(file)["settings"]["by_default"] | dict(black_box=True) | settings
        (directory / "settings.json").write_text(json.dumps(given))
        (tmp_path / "job.py").write_text(textwrap.dedent(JOB) + textwrap.dedent(code))
        done = oomph(OUTER, "--keep-files")
        record = json.loads((directory / "record.json").read_text())
        return done, record, directory

    return run


def test_the_recorder_leaves_and_comes_back_when_more_is_reserved(real):
    done, record, directory = real("""
        from oomph._recorder import window

        window.LOOK_SECONDS = window.REST = 0
        recorded = []
        for index in range(80):
            step(64 if index < 30 else 64 << 12)
            recorded.append(hooked())
        print("recorded", [index for index, there in enumerate(recorded) if there])
    """)
    first, second = record["windows"]
    assert record["steps"] == 80 and record["outcome"]["kind"] == "finished"
    assert first == [1, 6] and 31 <= second[0] <= 33 and second[1] - second[0] == 5
    # The hooks leave at the end of the last step of each window.
    expected = [*range(5), *range(second[0] - 2, second[1] - 1)]
    assert f"recorded {expected}" in done.out
    # Of the second window, which has the peak.
    assert (directory / "trace.pickle").stat().st_size > 10_000


def test_some_steps_wait_for_the_gpu_once(real):
    _, record, _ = real("""
        for index in range(40):
            step(64 if index < 30 else 128)
    """)
    assert len(record["paced"]) == 8
    assert all(0 < issued <= whole < 5 for whole, issued in record["paced"])


def test_a_script_that_is_killed_leaves_its_record(real):
    _, record, directory = real("""
        for index in range(20):
            step()
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert record["outcome"] == dict(kind="killed", status=137)
    assert record["steps"] == 6 and record["windows"] == [[1, 6]]
    assert (directory / "trace.pickle").exists()


def test_all_steps_that_were_asked_for_are_recorded(real):
    _, record, _ = real("for index in range(20): step()", steps=12)
    assert record["windows"] == [] and record["steps"] == 12


def test_running_out_of_memory_afterwards_is_recorded(real):
    _, record, directory = real("""
        for index in range(20):
            step()
        torch.empty(1 << 40, device="cuda")
    """)
    assert record["oom"]["raised"] and record["oom"]["step"] == 20
    assert (directory / "held.pickle").exists()


def test_passes_of_inference_are_counted_without_the_recorder(real):
    done, record, _ = real("""
        with torch.no_grad():
            for index in range(30):
                net(torch.ones(8, 64, device="cuda"))
        print("hooked", hooked())
    """)
    assert "hooked False" in done.out
    assert record["inferences"] == 30 and record["windows"] == [[1, 6]]


def test_steps_by_hand_are_counted_without_the_recorder(real):
    """Two backward passes make one of them."""
    done, record, _ = real("""
        for index in range(30):
            for _ in range(2):
                net(torch.ones(8, 64, device="cuda")).sum().backward()
            with torch.no_grad():
                for p in net.parameters():
                    p.sub_(p.grad)
                    p.grad = None
        print("hooked", hooked())
    """)
    assert "hooked False" in done.out
    assert record["steps"] == 30 and record["windows"] == [[1, 6]]


def test_a_script_that_becomes_another_program_leaves_its_record(real):
    _, record, _ = real("""
    step()
    os.execvp("true", ["true"])
    """)
    assert record["used_cuda"] and record["steps"] == 1
    assert record["outcome"]["kind"] == "replaced" and record["stopped"]


LONG = """
import torch
from oomph._recorder.window import LongWindow
LongWindow.LEAST_STEPS, LongWindow.ALLOCATIONS = 100, 1000
net = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []
for number in range(1, 801):
    net(torch.zeros(16, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number > FROM:
        kept.append(torch.empty(1 << 22, device="cuda"))
"""


def long_run(oomph, tmp_path, grows_from):
    done = oomph(f"FROM = {grows_from}\n{LONG}")
    assert done.status == 0, done.err
    return done, json.loads((tmp_path / "run/record.json").read_text())


def test_a_long_run_on_a_virtual_gpu_does_not_fill_the_hosts_memory(oomph, tmp_path):
    done, record = long_run(oomph, tmp_path, 1000)
    ((first, last),) = record["windows"]
    assert first == 1 and 100 <= last <= 300 and record["steps"] == 800
    assert {len(record[part]) // last for part in ("clock", "boundaries")} <= {0, 1, 2}
    assert max(scope[3] for scope in record["scopes"]) <= last
    assert done.json["step_count"] == 800 and done.json["by_category"]["parameters"] > 0


def test_a_long_run_that_grows_later_is_recorded_again(oomph, tmp_path):
    done, record = long_run(oomph, tmp_path, 550)
    assert record["windows"] and max(scope[3] for scope in record["scopes"]) >= 790
    assert done.json["growth"]["place"].startswith("script.py:")
