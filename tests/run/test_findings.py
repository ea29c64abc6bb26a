"""What the linter finds on lines that hold memory, and the snapshot at the moment of failure."""

import json
import os
import pickle
import subprocess
import sys

from tests.support import schemas
from tests.support.command import OOMPH
from tests.support.protocol import run_settings

KEPT = """
    import torch
    from torch import nn

    def train():
        model = nn.Linear(2048, 2048).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        losses = []
        for step in range(400):
            optimizer.zero_grad()
            out = model(torch.randn(16384, 2048, device="cuda"))
            loss = out.square().mean()
            losses.append(loss)
            out.mean().backward()
            optimizer.step()

    train()
"""


def oomph_command(*arguments, cwd):
    return subprocess.run(
        [OOMPH, *map(str, arguments)],
        capture_output=True, text=True, cwd=cwd, timeout=120,
    )  # fmt: skip


def test_findings_on_lines_that_hold_memory_come_with_their_bytes(oomph, tmp_path):
    run = oomph(KEPT, "--no-measure")
    assert run.status == 3
    (finding,) = run.json["findings"]
    assert (finding["code"], finding["held_by"]) == ("OOM102", "loop")
    # Everything but parameters and gradients was made in the loop.
    assert finding["held_bytes"] > 10 << 30
    assert "OOM102" in run.out and len(run.out.splitlines()) < 50

    explained = oomph_command("explain", tmp_path / "run", "--json", "-", cwd=tmp_path)
    assert explained.returncode == 3, explained.stderr
    found = schemas.read(explained.stdout)
    assert found["cause"]["id"] == "graph_retained"
    assert found["findings"] == [finding]

    linted = oomph_command(
        "lint", "--isolated", "--trace", tmp_path / "run", "--output-format", "json", "script.py",
        cwd=tmp_path,
    )  # fmt: skip
    assert linted.returncode == 3, linted.stderr
    (same,) = schemas.read(linted.stdout)["findings"]
    assert same["held_bytes"] == finding["held_bytes"]

    wrong = oomph_command("lint", "--trace", tmp_path, "script.py", cwd=tmp_path)
    assert wrong.returncode == 2 and "expected the directory of a run" in wrong.stderr


def test_memory_of_another_library_of_the_process_is_not_somebody_elses(oomph):
    run = oomph(
        """
        import ctypes, torch
        torch.zeros(1, device="cuda")
        pointer = ctypes.c_void_p()
        size = ctypes.c_size_t(8 << 30)
        assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(pointer), size) == 0
        model = torch.nn.Linear(2048, 2048).cuda()
        for _ in range(3):
            y = model(torch.randn(1 << 18, 2048, device="cuda"))
            y.square().mean().backward()
        """,
        "--no-measure",
    )
    assert run.status == 3
    assert "outside PyTorch's allocator by other libraries of this process" in " ".join(
        run.out.split()
    )


def test_a_real_gpu_keeps_the_moment_of_failure(tmp_path):
    """The virtual GPU plays a real one: the recorder is told that it is not virtual."""
    directory = tmp_path / "run"
    directory.mkdir()
    config = subprocess.run(
        [sys.executable, "-c", "import oomph, os; print(os.path.dirname(oomph.__file__))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    (directory / "settings.json").write_text(json.dumps(run_settings() | dict(black_box=True)))
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, torch\n"
        "kept = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')\n"
        "try:\n"
        "    torch.empty(1 << 50, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError:\n"
        "    os.kill(os.getpid(), 9)  # what a watchdog does to ranks that hang\n"
    )
    process = subprocess.run(
        [sys.executable, "-m", "oomph.launch", str(script)],
        capture_output=True, text=True, cwd=tmp_path, timeout=120,
        env={
            **os.environ,
            "LD_PRELOAD": os.path.join(config, "_vgpu", "libcuda.so.1"),
            "OOMPH_RUN": str(directory / "settings.json"),
        },
    )  # fmt: skip
    assert process.returncode == -9, process.stderr
    assert not (directory / "record.json").exists()
    snapshot = pickle.loads((directory / "held.pickle").read_bytes())
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert actions[-1] == "oom"
    assert sum(segment["allocated_size"] for segment in snapshot["segments"]) >= 1 << 30
    explained = oomph_command("explain", directory / "held.pickle", cwd=tmp_path)
    assert explained.returncode == 3, explained.stderr
