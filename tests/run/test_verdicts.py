"""`oomph run` on real PyTorch: verdicts, exit statuses, and what wrong input gives."""

import os
import re
import subprocess

import pytest

from tests.support.command import OOMPH

TRAIN = """
    import sys, torch
    from torch import nn
    batch = int(sys.argv[1])
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        x = torch.randn(batch, 1024, device="cuda")
        loss = model(x).pow(2).mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        print("step", step)
"""


@pytest.mark.usefixtures("started")
def test_a_job_that_fits(oomph):
    run = oomph(TRAIN, args=["64"])
    assert run.status == 0, run.err
    assert run.json["format"] == "oomph.run/1"
    assert run.json["verdict"] == "fits" and run.json["oom"] is None
    assert run.out.count("step ") >= 4  # the script's own output is there
    categories = run.json["by_category"]
    parameters = (1024 * 4096 * 2 + 4096 + 1024) * 4
    assert parameters <= categories["parameters"] <= parameters + 4096
    assert 2 * parameters <= categories["optimizer_state"] <= 2 * parameters + 8192
    peak = run.json["peak"]
    assert peak["allocated_bytes"] <= peak["reserved_bytes"] < peak["used_bytes"]
    total = sum(categories.values())
    assert total == pytest.approx(peak["used_bytes"], rel=0.02)
    assert run.json["step_count"] == 4
    assert any("Sequential" in share["name"] for share in run.json["modules"])


@pytest.mark.usefixtures("started")
def test_an_empty_slice_that_is_alive_when_memory_runs_out_has_no_address(oomph):
    script = """
        import torch
        kept = torch.zeros(1 << 20, device="cuda")[1 << 19 : 1 << 19]
        torch.empty(1 << 40, device="cuda")
    """
    run = oomph(script)
    assert run.status == 3, run.err
    assert run.json["verdict"] == "out_of_memory"


def test_a_closure_is_no_part_of_the_optimizers_step(oomph):
    run = oomph("""
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), *(torch.nn.GELU() for _ in range(8))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=.1)
    x = torch.randn(65536, 1024, device="cuda")
    def closure():
        optimizer.zero_grad(); loss = model(x).sum(); loss.backward()
        return loss
    for _ in range(3):
        optimizer.step(closure=closure)
    """)  # fmt: skip
    assert run.status == 0 and run.json["step_count"] == 3, run.err
    assert run.json["by_category"]["activations"] >= 8 * 65536 * 1024 * 4
    assert any("Sequential" in share["name"] for share in run.json["modules"])


@pytest.mark.usefixtures("started")
def test_a_job_that_does_not_fit_says_where_and_by_how_much(oomph):
    run = oomph(TRAIN, args=["400000"])
    assert run.status == 3
    assert "torch.OutOfMemoryError: CUDA out of memory" in run.err  # PyTorch's own
    assert "script.py" in run.err and "oomph/" not in run.err.split("Traceback")[1]
    oom = run.json["oom"]
    assert run.json["verdict"] == "out_of_memory"
    assert oom["step"] == 1 and re.search(r"script\.py:\d+$", oom["location"])
    # The measured need is on a GPU without limit: at least two activations and the input.
    assert run.json["peak"]["used_bytes"] > 400000 * (4096 * 2 + 1024) * 4
    assert oom["short_bytes"] == run.json["peak"]["used_bytes"] - run.json["gpu"]["memory_bytes"]


def test_capacity_is_the_line(oomph):
    need = oomph(TRAIN, args=["4096"]).json["peak"]["used_bytes"]
    assert oomph(TRAIN, "--memory", str(need + (8 << 20)), args=["4096"]).status == 0
    assert oomph(TRAIN, "--memory", str(need - (64 << 20)), args=["4096"]).status == 3


def test_a_shape_that_was_not_meant_is_named(oomph):
    """More than any GPU holds, so no run without a limit says how much is needed."""
    run = oomph("""
        import torch
        a, b = torch.zeros(1 << 25, 1, device="cuda"), torch.zeros(1 << 25, device="cuda")
        error = a - b
    """)
    assert run.status == 3
    assert run.json["oom"]["requested_bytes"] == 1 << 52
    assert "one request asked for 4096.0 TiB" in run.err + run.out
    assert "an unintended shape" in run.err + run.out


def test_steps_end_the_script_cleanly(oomph):
    run = oomph(
        TRAIN.replace('print("step", step)', 'print("step", step)\n') + "    print('not reached')\n",
        "--steps", "3", args=["64"],
    )  # fmt: skip
    assert run.status == 0 and run.json["step_count"] == 3
    assert "not reached" not in run.out


def test_an_error_caught_without_going_on_is_a_verdict(oomph):
    run = oomph("""
        import torch
        try:
            torch.empty(1 << 40, device="cuda")
        except torch.OutOfMemoryError as error:
            print("caught", type(error).__name__)
    """)
    assert "caught OutOfMemoryError" in run.out
    assert run.status == 3 and run.json["verdict"] == "out_of_memory"


def test_an_error_caught_and_survived_is_not(oomph):
    run = oomph("""
        import torch
        model = torch.nn.Linear(8, 8).cuda(); optimizer = torch.optim.SGD(model.parameters(), lr=.1)
        try:
            torch.empty(1 << 40, device="cuda")
        except torch.OutOfMemoryError:
            pass
        model(torch.randn(4, 8, device="cuda")).sum().backward(); optimizer.step()
    """)
    assert run.status == 0 and run.json["verdict"] == "fits" and run.json["handled_oom_count"] == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [("import sys, torch; torch.zeros(1).cuda(); sys.exit(7)", 1), ("import torch; torch.zeros(1).cuda(); raise ValueError('mine')", 1), ("import torch, sys; torch.zeros(1).cuda(); sys.exit(0)", 0), ("print('no torch here')", 0)],
)  # fmt: skip
def test_the_scripts_own_end(oomph, code, status):
    run = oomph(code)
    assert run.status == status
    if "ValueError" in code:
        assert "ValueError: mine" in run.err and "oomph/launch.py" not in run.err
        assert run.json["verdict"] == "script_failed" and "mine" in run.json["failure"]


def test_data_loader_workers_and_spawned_processes(oomph):
    run = oomph("""
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        if __name__ == "__main__":
            data = TensorDataset(torch.arange(64.0).view(64, 1))
            model = torch.nn.Linear(1, 1).cuda(); optimizer = torch.optim.SGD(model.parameters(), lr=.1)
            for context in ("fork", "spawn"):
                for (x,) in DataLoader(data, batch_size=32, num_workers=1, multiprocessing_context=context, pin_memory=True):
                    model(x.cuda()).sum().backward(); optimizer.step()
            print("done")
    """)
    assert run.status == 0 and "done" in run.out, run.err


def command(*words):
    return subprocess.run([OOMPH, *words], capture_output=True, text=True, timeout=120)


def test_wrong_usage_says_what_to_do(tmp_path):
    script = tmp_path / "s.py"
    script.write_text("import torch")
    cases = [
        (["run", "--gpu", "rtx-4090", str(tmp_path / "absent.py")], "no such file"),
        (["run", "--gpu", "rtx-4009", str(script)], "rtx-4090"),
        (["run", "--gpu", "rtx-4090", "--memory", "lots", str(script)], "lots"),
        (["run", "--gpu", "rtx-4090"], "no script"),
        (["run", "--memory", "8GiB", str(script)], "--gpu"),
        (["run", "--gpu", "rtx-4090", "--steps", "0", str(script)], "--steps"),
    ]
    for words, expected in cases:
        found = command(*words)
        assert found.returncode == 2, (words, found)
        assert expected in found.stderr, (words, found.stderr)
        assert "Traceback" not in found.stderr


def test_a_python_without_torch_is_refused(tmp_path):
    (tmp_path / "torch.py").write_text("")  # not a package: no version file
    (tmp_path / "s.py").write_text("print('ran')")
    found = subprocess.run(
        [OOMPH, "run", "--gpu", "t4", "s.py"], capture_output=True, text=True,
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=300,
    )  # fmt: skip
    assert found.returncode == 2 and "torch" in found.stderr and "ran" not in found.stdout


@pytest.mark.usefixtures("started")
def test_the_record_is_written_without_importing_the_compiler(oomph):
    """It takes a second, which every run would take."""
    run = oomph("""
        import atexit, sys, torch
        torch.zeros(8, device="cuda")
        atexit.register(lambda: print("compiler:", "torch._inductor" in sys.modules))
    """)
    assert run.status == 0 and "compiler: False" in run.out, run.out + run.err
