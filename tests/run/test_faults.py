"""What fails around a run: full disks, small limits, directories that cannot be written to."""

import os
import pathlib
import resource
import subprocess
import sys
import textwrap

import pytest

from tests.support import forked, schemas
from tests.support.command import OOMPH

NOBODY = 65534

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
            preexec_fn=limit if limits else None, env=env, capture_output=True, text=True, timeout=600,
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


def mounted(place, mount):
    """`run(words)`: oomph with these words in `place`, after the shell command `mount`."""
    space = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]
    if subprocess.run([*space, "sh", "-c", mount], cwd=place, capture_output=True).returncode:
        pytest.skip("mounts are not permitted here")

    def run(words):
        return subprocess.run(
            [*space, "sh", "-c", f"{mount} && exec {OOMPH} {words}"],
            cwd=place, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run


@pytest.fixture
def little_shared_memory(tmp_path, started):
    """`little_shared_memory(words)`: oomph with these words where `/dev/shm` has 64 KiB."""
    return mounted(tmp_path, "mount -t tmpfs -o size=64k tmpfs /dev/shm")


def test_a_temporary_directory_that_cannot_be_written_is_no_fault(tmp_path, started):
    """Containers may be read-only but for what is mounted."""
    (tmp_path / "job.py").write_text(JOB.replace("STEPS", "2"))
    own = 'mount --bind /tmp /tmp && mount --bind "$PWD" "$PWD"'
    read_only = f'{own} && mount -o remount,ro,bind /tmp && cd "$PWD" && ! touch /tmp/oomph'
    done = mounted(tmp_path, read_only)("run --gpu t4 job.py")
    assert done.returncode == 0 and "✓ fits" in done.stdout, done.stderr


def test_little_shared_memory_is_enough(little_shared_memory, tmp_path):
    """Containers have 64 MiB of it, or less."""
    (tmp_path / "job.py").write_text(JOB.replace("STEPS", "2"))
    done = little_shared_memory("run --gpu t4 job.py")
    assert done.returncode == 0 and "✓ fits" in done.stdout, done.stderr


def test_little_shared_memory_is_enough_for_ranks(little_shared_memory, tmp_path):
    """The system would kill a rank that writes more there than it has."""
    (tmp_path / "job.py").write_text("""
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"]); torch.cuda.set_device(rank)
dist.init_process_group("nccl", f"file://{os.getcwd()}/meet", rank=rank, world_size=2)
x = torch.full((1 << 18,), rank + 1.0, device="cuda")  # 1 MiB
dist.all_reduce(x); assert x.unique().tolist() == [3]
dist.destroy_process_group()
print(f"rank {rank} done", flush=True)
""")
    (tmp_path / "both.sh").write_text(f"""
export WORLD_SIZE=2
for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank {sys.executable} job.py & done
wait
""")
    done = little_shared_memory("run --gpu rtx-4090:2 -- sh both.sh")
    assert done.returncode == 0 and "✓ fits" in done.stdout, done.stderr
    assert "rank 0 done" in done.stdout and "rank 1 done" in done.stdout


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


@pytest.mark.parametrize("number", [20_000, 1_000_000])
def test_each_of_many_allocations_in_one_step_is_counted(run, tmp_path, number):
    """The peak is one of them, in the middle."""
    many = f"""
    for i in range({number} if step == 1 else 0):
        torch.empty(512, device="cuda")
        if i == {number // 2}:
            torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    model("""
    code = JOB.replace("STEPS", "3").replace("\n    model(", many)
    done = run(code, "--json", "result.json")
    assert done.returncode == 0 and not errors(done), done.stderr
    result = schemas.read((tmp_path / "result.json").read_text())
    assert (result["verdict"], result["step_count"], result["peak_step"]) == ("fits", 3, 2)
    assert 1 << 30 < result["peak"]["allocated_bytes"] < (1 << 30) + (32 << 20)
    assert (tmp_path / "out/trace.oomph").stat().st_size < (1 << 20) + 30 * number


def as_user(number):
    """The beginning of a command that another user runs, who may read everything."""
    words = [
        *(() if os.geteuid() == 0 else ("sudo", "-n")),
        *("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups"),
        *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search", "env"),
    ]
    if subprocess.run([*words, "true"], capture_output=True).returncode:
        pytest.skip("only root can be another user")
    return words


def test_few_processes_are_enough_or_said(tmp_path):
    (tmp_path / "job.py").write_text(JOB.replace("STEPS", "2"))
    tmp_path.chmod(0o777)
    for most, status, said in [(1, 2, "Resource temporarily unavailable"), (16, 0, "✓ fits")]:
        words = [f"HOME={tmp_path}", f"{forked.FORKS}=", "prlimit", f"--nproc={most}", OOMPH]
        done = subprocess.run(
            [*as_user(NOBODY - 2), *words, "run", "--gpu", "t4", "job.py"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == status and said in done.stdout + done.stderr, done.stderr


def test_two_users_at_once_do_not_meet(tmp_path):
    """They share `/dev/shm`, where neither may remove what another user has."""
    third, left = as_user(NOBODY - 1), f"/dev/shm/oomph-0-{os.getpid()}"
    places = [tmp_path / "own", tmp_path / "other"]
    for place in places:
        place.mkdir()
        place.chmod(0o777)
        (place / "job.py").write_text("import torch; torch.ones(8, device='cuda').sum().item()")
    words = [OOMPH, "run", "--gpu", "t4", "job.py"]
    other = [*as_user(NOBODY), f"HOME={places[1]}", f"{forked.FORKS}=", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    try:
        killed = f"mkdir {left} && touch {left}/owner"  # as a run leaves it that was killed
        subprocess.run([*third, "sh", "-c", killed], check=True)
        runs = [
            subprocess.Popen(command, cwd=place, **pipes)
            for command, place in zip([words, other], places, strict=True)
        ]
        for run, place in zip(runs, places, strict=True):
            out, error = run.communicate(timeout=120)
            assert run.returncode == 0 and "✓ fits" in out, error
            assert (place / "oomph-report/latest/index.html").is_file()
        assert os.path.isfile(f"{left}/owner")
        here = [
            (path.name, path.stat().st_uid) for path in pathlib.Path("/dev/shm").glob("oomph-*")
        ]
        assert not [name for name, user in here if user == NOBODY or f"-{runs[0].pid}-" in name]
    finally:
        subprocess.run([*third, "rm", "-rf", left])
    # In a directory that both may write to, the reports are the first user's.
    done = subprocess.run(other, cwd=places[0], capture_output=True, text=True, timeout=120)
    (line,) = errors(done)
    assert done.returncode == 2 and "oomph-report" in line


ABORTS = """
import ctypes, os, torch
torch.zeros(1).cuda()
driver = ctypes.CDLL("libcuda.so.1")
found, text = ctypes.c_int(), ctypes.c_char_p()
assert driver.cuPointerGetAttribute(ctypes.byref(found), 9, ctypes.c_uint64(4096)) == 1
driver.cuGetErrorString(1, ctypes.byref(text))
os.abort()
"""


def test_a_program_that_ends_itself_over_an_error_is_named_with_the_call(run):
    # As XLA does, whose checks end the process.
    done = run(ABORTS)
    [line] = [line for line in done.stderr.splitlines() if "SIGABRT" in line and "oomph" in line]
    assert done.returncode == 1
    assert line.endswith("the last call that failed: cuPointerGetAttribute (CUDA error 1)")
