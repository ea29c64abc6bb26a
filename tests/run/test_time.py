"""How long a step takes: `oomph run` and `oomph gpus --for`."""

import json
import os
import re
import socket
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.support import schemas
from tests.support.command import OOMPH, ROOT
from tests.support.machine import machine_with

SCRIPT = """
    import torch
    model = torch.nn.Sequential(*[torch.nn.Linear({width}, {width}) for _ in range(4)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4096, {width}, device="cuda")).sum().backward()
        optimizer.step()
"""


def test_a_step_takes_longer_on_more_and_says_what_decides(oomph):
    small, large = (
        oomph(SCRIPT.format(width=width), gpu="h200").json["time"] for width in (64, 8192)
    )
    for time in (small, large):
        assert 0 < time["low"] < time["step_seconds"] < time["high"]
        assert time["consumers"] and time["host"]
    assert small["bound"] == "host"
    assert large["bound"] == "device"
    # Eleven products, each of 2 * 4096 * 8192**2 operations at up to 62e12 a second.
    assert 0.09 < large["device_seconds"] < 0.16
    assert large["consumers"][0]["name"] == "matrix products"
    assert large["samples_per_second"] > 4096 / large["high"]


def test_steps_that_differ_have_a_range(oomph):
    script = """
        import torch
        layer = torch.nn.Linear(4096, 4096).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for step in range(6):
            optimizer.zero_grad()
            layer(torch.randn(4096 * (step + 1), 4096, device="cuda")).sum().backward()
            optimizer.step()
    """
    time = oomph(script, gpu="h200").json["time"]
    assert time["steps_differ"]
    assert time["high"] > 2 * time["low"]


def test_samples_are_those_of_all_batches_of_a_step(oomph):
    """Gradients are accumulated over three batches; one more is fetched than there are steps for."""
    script = """
        import torch
        layer = torch.nn.Linear(2048, 2048).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        loader = torch.utils.data.DataLoader(torch.randn(13 * 64, 2048), batch_size=64)
        for number, batch in enumerate(loader, 1):
            layer(batch.cuda()).sum().backward()
            if number % 3 == 0:
                optimizer.step()
                optimizer.zero_grad()
    """
    run = oomph(script, gpu="h200")
    time = run.json["time"]
    assert time["samples_per_second"] * time["step_seconds"] == pytest.approx(3 * 64)


def test_a_batch_that_no_step_was_made_of_is_none_of_its_samples(oomph):
    """Memory runs out in the second step: its batch was one more of the first one's."""
    script = """
        import torch
        layer = torch.nn.Linear(2048, 2048).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for number, batch in enumerate(torch.utils.data.DataLoader(torch.randn(8 * 64, 2048), batch_size=64)):
            layer(batch.cuda()).sum().backward()
            more = torch.empty(number << 33, device="cuda")
            optimizer.step()
    """
    time = oomph(script, "--steps", "3").json["time"]
    assert time["samples_per_second"] * time["step_seconds"] == pytest.approx(64)


def test_samples_are_those_of_batches_that_train_on_the_gpu(oomph):
    """Transforms that are modules were called with one picture on the CPU, and a rollout without gradients with another batch;
    two backward passes for each step, without a loader, were counted as one."""
    script = """
        import torch
        class Half(torch.nn.Module):
            def forward(self, picture):
                return picture / 2
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.Flatten(), torch.nn.Linear(32 * 62 * 62, 8)).cuda()
        half = Half()
        pictures = lambda n: torch.stack([half(torch.rand(3, 64, 64)) for _ in range(n)]).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            model(pictures(7))
        for _ in range(4):
            for _ in range(2):
                model(pictures(12)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    time = oomph(script, gpu="h200").json["time"]
    assert time["samples_per_second"] * time["step_seconds"] == pytest.approx(2 * 12)


def test_data_that_the_script_makes_on_the_cpu_takes_time(oomph):
    """Without a data loader nothing counted it: 5 million random numbers take any core more than 10 ms, and a GPU next to nothing."""
    script = """
        import torch
        model = torch.nn.Linear(256, 256).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            x = torch.randn(20_000, 256, device="{device}")
            model(x.cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    here, there = (
        oomph(script.format(device=device), gpu="h200").json["time"] for device in ("cpu", "cuda")
    )
    assert there["input_seconds"] == 0 and there["bound"] == "host"
    assert here["input_seconds"] > 0.01 and here["bound"] == "loading"
    assert here["step_seconds"] > there["step_seconds"] + 0.01


def test_data_that_the_script_makes_without_pytorch_takes_time(oomph):
    """Only operators counted, and numpy has none. What a model does between its operators is no data."""
    script = """
        import numpy, torch
        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(50)]).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            numbers = numpy.random.default_rng(0).normal(size={many} << 12)
            model(torch.ones(64, 256, device="cuda") * float(numbers[0])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    much, little = (oomph(script.format(many=many), gpu="h200").json["time"] for many in (1000, 1))
    assert little["input_seconds"] < 0.01 < much["input_seconds"]
    assert much["bound"] == "loading" and little["bound"] == "host"


def test_samples_of_passes_without_steps_are_those_of_a_batch(oomph):
    """A loop that infers takes as many batches as it makes passes, with or without `no_grad`."""
    script = """
        import torch
        layer = torch.nn.Linear(2048, 2048).cuda()
        for batch in torch.utils.data.DataLoader(torch.randn(6 * 64, 2048), batch_size=64):
            layer(batch.cuda())
    """
    time = oomph(script, gpu="h200").json["time"]
    assert time["samples_per_second"] * time["step_seconds"] == pytest.approx(64)


def test_all_gpus_after_one_rehearsal(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "\n".join(line.removeprefix("    ") for line in SCRIPT.format(width=4096).splitlines())
    )
    prices = tmp_path / "prices"
    prices.write_text("h200 = 0.01\n")
    command = [OOMPH, "gpus", "--json", "-", "--prices", str(prices), "--for", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = schemas.read(done.stdout)["gpus"]
    assert len(found) > 100
    assert found[0]["gpu"] == "h200"
    assert found[0]["price"]["source"] == "your file of prices"
    by_name = {gpu["gpu"]: gpu for gpu in found}
    order = [by_name[name]["time"]["step_seconds"] for name in ("h200", "a100-80gb-sxm", "t4")]
    assert order == sorted(order)
    fits = [gpu["fits"] for gpu in found]
    assert fits == sorted(fits, reverse=True)


def test_a_price_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "prices").write_text("h200 = 1\nt4 = cheap\n")
    command = [OOMPH, "gpus", "--prices", "prices", "--for", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "line 2: cheap is no price" in done.stderr


GRAPH = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def count(node, seen):
        if node is not None and node not in seen:
            seen.add(node)
            for before, _ in node.next_functions:
                count(before, seen)
        return len(seen)

    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8, device="cuda")).t().float().sum()
        nodes = count(loss.grad_fn, set())
        loss.backward()
        optimizer.step()
    print("nodes", nodes)
"""


def test_a_calibrated_host_is_assumed_and_autograds_nodes_keep_it_busy(
    oomph, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = tmp_path / "cache" / "oomph" / "hosts" / f"{socket.gethostname()}.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps(dict(gpu="NVIDIA T4", date="2026-01-31", steps=dict(linear=1.0))))
    run = oomph(GRAPH, gpu="t4")
    assert run.json["time"]["host"] == "this machine (measured 2026-01-31)"
    # A step of the small model takes the default host 3 ms, and this one of 300 times as long a second.
    assert run.json["time"]["host_seconds"] > 0.2
    work = json.loads((tmp_path / "run" / "record.json").read_text())["work"]
    steps = [line for line in work["table"] if line[0] == "modules"]
    # The last number counts gradients: two weights and two biases.
    assert steps[-1] == ["modules", 4, int(re.search(r"nodes (\d+)", run.out)[1]), 4]

    def calibrate(*words):
        return subprocess.run([OOMPH, "calibrate", *words], capture_output=True, text=True)

    assert "times as long as" in calibrate("--show").stdout
    assert calibrate("--remove").returncode == 0
    assert not kept.exists()
    assert calibrate("--show").returncode == 2
    measured = calibrate()
    assert measured.returncode == 1
    assert "no GPU" in measured.stderr


LOOP = """
    import torch
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.ones(8, 64, device="cuda")).sum().backward()
        optimizer.step()
"""


def test_a_real_run_teaches_what_this_machine_takes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(textwrap.dedent(LOOP))
    # Its kernels take no time, and its host as long as any that launches kernels.
    machine = machine_with("rtx-3060", tmp_path)

    def oomph(*words, env=None):
        return subprocess.run(
            [OOMPH, *words], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, **(env or {})},
        )  # fmt: skip

    real = oomph("run", "--fit", "--out", "real", "train.py", env=machine)
    assert real.returncode == 0, real.stderr
    paced = json.loads((tmp_path / "real" / "record.json").read_text())["paced"]
    shown = oomph("calibrate", "--show").stdout
    factor = float(re.search(r"this host takes ([\d.]+) times", shown)[1])
    assert f"{factor:.2f} by " in shown and "train.py (20" in shown
    again = oomph("run", "--gpu", "rtx-3060", "--steps", "4", "--out", "again", "train.py")
    time = json.loads((tmp_path / "again" / "summary.json").read_text())["time"]
    assert time["host"].startswith("this machine (measured 20")
    # What the steps took here is what the next estimate says.
    took = sorted(whole for whole, _ in paced)[len(paced) // 2]
    assert time["step_seconds"] == pytest.approx(took, rel=0.1), (again.stdout, shown)

    # The same from two runs' directories, and nothing from two that do not belong together.
    assert oomph("calibrate", "--remove").returncode == 0
    learned = oomph("calibrate", "--run", "real", "--rehearsed", "again")
    assert learned.returncode == 0 and f"{factor:.2f} by " in learned.stdout, learned.stderr
    swapped = oomph("calibrate", "--run", "again", "--rehearsed", "real")
    assert swapped.returncode == 2 and "after --run" in swapped.stderr
    oomph("run", "--gpu", "t4", "--steps", "4", "--out", "other", "train.py")
    other = oomph("calibrate", "--run", "real", "--rehearsed", "other")
    assert other.returncode == 2 and "the rehearsal on a Tesla T4" in other.stderr


def test_a_step_is_told_apart_by_module_phase_and_kind(oomph):
    script = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.large, self.small = nn.Linear(4096, 4096), nn.Linear(4096, 4)

            def forward(self, x):
                return self.small(self.large(x).relu())

        model = Net().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(4):
            model(torch.randn(4096, 4096, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    time = oomph(script, gpu="h200").json["time"]
    parts = {(part["phase"], part["module"], part["work"]): part["seconds"] for part in time["parts"]}  # fmt: skip
    forward = parts["forward", "Net.large", "matrix products"]
    # Its input needs no gradient, so that its backward pass is one product, too.
    assert parts["backward", "Net.large", "matrix products"] == pytest.approx(forward, rel=0.2)
    assert forward > 10 * parts["forward", "Net.small", "matrix products"]
    assert ("optimizer", "", "steps over lists of tensors") in parts
    assert sum(parts.values()) == pytest.approx(time["device_seconds"])


def test_what_calibrates_a_host_is_what_the_clock_knows(oomph):
    run = oomph(
        """
        from oomph._calibration import measured
        print(*measured(rounds=1, steps=1))
        """,
        "-q",
        gpu="t4",
    )
    known = Path(ROOT, "crates", "oomph-clock", "src", "host.rs").read_text()
    assert run.out.split() == re.findall(r'^    \("(\w+)", [\d.e-]+\),$', known, re.MULTILINE)


def test_factorizations_transforms_and_scans_are_written_down(oomph, tmp_path):
    oomph(
        """
        import torch
        weight = torch.ones(64, 128, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            torch.linalg.cholesky(torch.eye(256, device="cuda"))
            torch.fft.fft(torch.ones(32, 1024, device="cuda", dtype=torch.complex64))
            weight.cumsum(0).sum().backward()
            optimizer.step()
        """,
        gpu="h200",
    )
    work = json.loads((tmp_path / "run" / "record.json").read_text())["work"]
    # 256 columns, each after the one before; one kernel that reads and writes 32 rows of 8 KiB; 64 additions of each thread.
    assert ["chain", 256 * 710, 0, 0, "linear algebra"] in work["table"]
    assert ["moving", 2 * 32 * 8192, "Fourier transforms"] in work["table"]
    assert any(line[0] == "chain" and line[1] == 64 * 715 for line in work["table"])


def test_what_python_computes_again_is_not_the_engines(oomph, tmp_path):
    """The engine's operators take the host less time. Recomputation is Python's, in whichever thread the backward pass goes on."""
    run = oomph(
        """
        import torch
        from torch.utils.checkpoint import checkpoint
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        def once(x):
            return torch.tanh(torch.tanh(x @ weight))
        def again(x):
            return checkpoint(once, x, use_reentrant=False)
        for threads in (True, False):
            for f in (once, once, again, again):
                loss = f(torch.ones(8, 64, device="cuda")).sum()
                with torch.autograd.set_multithreading_enabled(threads):
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        """
    )
    assert run.status == 0, run.err
    work = json.loads((tmp_path / "run" / "record.json").read_text())["work"]
    steps = [lines for count, lines in work["steps"] for _ in range(count)]

    def operators(step):
        lines = [work["table"][line] for line in step]
        return [lines.count(["operator", by_engine]) for by_engine in (0, 1)]

    once, again, once_alone, again_alone = (operators(step) for step in steps[1::2])
    assert once[1] == 3 and again == [once[0] + 3, once[1]]
    assert [once_alone, again_alone] == [once, again]


def test_samples_that_lie_one_behind_the_other_are_counted_by_what_the_model_returns(oomph):
    """The first tensor has the items of all bags: 64 bags are 64 samples, not 640."""
    script = """
        import torch
        bags = torch.nn.EmbeddingBag(1000, 2048).cuda()
        optimizer = torch.optim.SGD(bags.parameters(), lr=0.1)
        for _ in range(3):
            items, offsets = torch.randint(1000, (640,)), torch.arange(0, 640, 10)
            bags(items.cuda(), offsets.cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    time = oomph(script, gpu="h200").json["time"]
    assert time["samples_per_second"] * time["step_seconds"] == pytest.approx(64)
