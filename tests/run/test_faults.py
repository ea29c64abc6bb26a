"""What fails around a run: full disks, small limits, directories that cannot be written to."""

import os
import resource
import subprocess
import textwrap

import pytest

from tests.support.command import OOMPH

JOB = """
import torch
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    model(torch.zeros(8, 64, device="cuda")).sum().backward()
    optimizer.step()
print("done")
"""


@pytest.fixture
def run(tmp_path):
    def run(code, *options, limits=(), env=None, out="out"):
        (tmp_path / "job.py").write_text(textwrap.dedent(code))

        def limit():
            for which, most in limits:
                resource.setrlimit(which, (most, most))

        return subprocess.run(
            [OOMPH, "run", "--gpu", "t4", "--out", out, *options, "job.py"], cwd=tmp_path,
            preexec_fn=limit if limits else None, env=env, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run


def errors(done):
    return [line for line in done.stderr.splitlines() if line.startswith(("error", "oomph"))]


@pytest.mark.parametrize("kilobytes", [16, 100])
def test_a_full_disk_is_said_and_leaves_no_half_files(run, tmp_path, kilobytes):
    steps = 100 if kilobytes == 16 else 3
    done = run(JOB.replace("STEPS", str(steps)), limits=[(resource.RLIMIT_FSIZE, kilobytes << 10)])
    assert done.returncode == 2 and "done" in done.stdout
    assert "Traceback" not in done.stderr
    (line,) = errors(done)
    assert "File too large" in line
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert not [name for name in left if name.endswith(".part")] and "index.html" not in left
    # The report alone was too large: the verdict is there.
    assert ("✓ fits" in done.stdout) == ("summary.json" in left) == (kilobytes == 100)


def test_few_descriptors_and_no_home_are_enough(run):
    env = {k: v for k, v in os.environ.items() if k != "HOME"}
    done = run(JOB.replace("STEPS", "2"), limits=[(resource.RLIMIT_NOFILE, 64)], env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("started")
def test_little_shared_memory_is_enough(tmp_path):
    """Containers have 64 MiB of it, or less."""
    space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]
    mount = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
    if subprocess.run([*space, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("mounts are not permitted here")
    (tmp_path / "job.py").write_text(JOB.replace("STEPS", "2"))
    done = subprocess.run(
        [*space, "sh", "-c", f"{mount} && exec {OOMPH} run --gpu t4 job.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0 and "✓ fits" in done.stdout, done.stderr


def test_a_directory_that_cannot_be_written_is_said(run, tmp_path):
    (tmp_path / "file").write_text("")
    done = run("print('ran')", out="file/out")
    assert done.returncode == 2 and "ran" not in done.stdout
    (line,) = errors(done)
    assert "file/out" in line


def test_closed_streams_are_no_fault(run, tmp_path):
    (tmp_path / "job.py").write_text("import sys; print('ran')")
    words = f"{OOMPH} run --gpu t4 --out out job.py <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", words], cwd=tmp_path, timeout=120)
    assert done.returncode in (0, 1)
    assert not (tmp_path / "out/index.html").exists()
