"""Whatever ends a job, what it did last and what it held is on disk, and `oomph explain DIRECTORY` says it.

The list of ends, and what each must leave. `real`: the script runs as on a real GPU, where the recorder has left after six
steps; a virtual GPU around the whole command stands for it.
"""

import os
import pickle
import subprocess
import textwrap
import time

import pytest

from tests.support import schemas
from tests.support.command import OOMPH
from tests.support.machine import machine_with
from tests.support.plans import plan

JOB = """
import ctypes, os, signal, sys, threading, time
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)
        self.end = None

    def forward(self, x):
        if self.end is not None:
            self.end()
        return x + self.down(self.up(x).relu())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters())

def step():
    net(torch.randn(64, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()

def train(steps, end):
    for _ in range(steps):
        step()
        time.sleep(0.02)
    time.sleep(PAUSE)  # a look
    print("ready", flush=True)
    net.blocks[1].end = end
    step()
"""
LINE = JOB.count("\n") + 2
"""The line of the script that says how it ends, behind one that is put before the job."""

ENDS = {
    # How, what the command and `explain` say, whether stacks were written, how exactly the module is known.
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL", False),
    "terminated": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", "ended by SIGTERM", True),
    "exception": ("raise ValueError('bad batch')", "ValueError: bad batch", False),
    "out of memory": ("torch.empty(1 << 40, dtype=torch.uint8, device='cuda')", "out of memory", False),
    "os._exit": ("os._exit(7)", "exit status 7", False),
    "abort": ("os.abort()", "SIGABRT", True),
    "segfault": ("ctypes.string_at(0)", "SIGSEGV", True),
}  # fmt: skip


@pytest.fixture
def machine(tmp_path):
    """The environment of a machine with a GPU: a virtual one around the whole command."""
    return dict(os.environ, **machine_with("rtx-3060", tmp_path), OOMPH_FORKS="")


class Done:
    """A run that has ended, and what `oomph explain` says of its directory."""

    def __init__(self, process, out, err, place):
        self.status, self.out, self.err, self.place = process.returncode, out, err, place

    def explain(self, *options):
        done = subprocess.run([OOMPH, "explain", *options, "run"], cwd=self.place.parent, capture_output=True, text=True, timeout=120)  # fmt: skip
        assert "Traceback" not in done.stderr and "panic" not in done.stderr, done.stderr
        return done

    @property
    def size(self):
        return sum(path.stat().st_size for path in self.place.rglob("*"))


@pytest.fixture
def run(tmp_path, machine):
    """`run(code, *options)`: a command on the machine; with `until_ready` it goes on."""

    def begin(code, *options, pause=1.2, virtual=False, job=JOB):
        (tmp_path / "job.py").write_text(f"PAUSE = {pause}\n" + job + textwrap.dedent(code))
        gpu = ["--gpu", "rtx-3060", "--no-measure"] if virtual else []
        return subprocess.Popen(
            [OOMPH, "run", "--out", "run", *gpu, *options, "job.py"], cwd=tmp_path, text=True,
            env=dict(os.environ) if virtual else machine, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(code, *options, **how):
        process = begin(code, *options, **how)
        out, err = process.communicate(timeout=120)
        return Done(process, out, err, tmp_path / "run")

    run.begin = begin
    return run


def shown(text):
    return " ".join(text.split())


def looked_in_step_21(done):
    """Wait until what is on disk knows of step 21: the recorder looks every second, or later on a busy machine."""
    time.sleep(1.5)
    until = time.monotonic() + 120
    parts = "step 21, forward", f"job.py:{LINE}"
    while not all(part in shown(done.explain("--no-report").stdout) for part in parts):
        assert time.monotonic() < until
        time.sleep(1)


@pytest.mark.parametrize(
    ("end", "where"),
    [(end, where) for where in ("real", "virtual") for end in ENDS],
)
def test_every_end_leaves_where_it_was_and_what_it_held(run, end, where):
    code, says, stacks = ENDS[end]
    done = run(f"train(20, lambda: exec({code!r}))", virtual=where == "virtual")
    assert done.status in (1, 3), done.err
    assert says in shown(done.out + done.err)
    left = {path.name for path in done.place.iterdir()}
    assert "black-box.bin" in left and ("stacks.txt" in left) == stacks, left
    # What PyTorch's viewer reads.
    held = pickle.loads((done.place / "held.pickle").read_bytes())
    assert sum(segment["allocated_size"] for segment in held["segments"]) > 3 * 2 * 256 * 1024 * 4
    explained = done.explain()
    text = shown(explained.stdout)
    assert explained.returncode == (3 if end == "out of memory" else 0), explained.stderr
    assert "held GPU 0: " in text
    assert says in text
    if end == "killed":
        # At most a second old; the end itself said nothing.
        assert "step 21" in text or "after step 20" in text
    else:
        assert "step 21, forward" in text and f"job.py:{LINE}" in text
    assert (done.place / "index.html").exists()
    if end == "killed":
        # Also as JSON: with what was held, and without where no snapshot is left.
        found = schemas.read(done.explain("--no-report", "--json", "-").stdout)
        assert found["format"] == "oomph.explain/1" and found["endings"]
        for path in done.place.iterdir():
            if path.suffix == ".pickle" or path.name.startswith("trace"):
                path.unlink()
        found = schemas.read(done.explain("--no-report", "--json", "-").stdout)
        assert found["format"] == "oomph.endings/1" and len(found["endings"]) == 1


def test_a_killed_command_leaves_all_of_it(run, tmp_path):
    process = run.begin("train(20, lambda: time.sleep(100))")
    for line in process.stdout:
        if line == "ready\n":
            break
    looked_in_step_21(Done(process, "", "", tmp_path / "run"))
    process.kill()
    out, err = process.communicate(timeout=120)
    done = Done(process, out, err, tmp_path / "run")
    text = shown(done.explain().stdout)
    assert "step 21, forward" in text and f"job.py:{LINE}" in text
    assert "SIGKILL" in text and "nothing says how it ended" in text
    assert (done.place / "summary.json").exists() and (done.place / "index.html").exists()


def test_a_job_that_is_going_on_is_explained_and_left_alone(run, tmp_path):
    process = run.begin("train(20, lambda: time.sleep(100))")
    try:
        for line in process.stdout:
            if line == "ready\n":
                break
        done = Done(process, "", "", tmp_path / "run")
        looked_in_step_21(done)
        before = {path.name for path in (tmp_path / "run").iterdir()}
        text = shown(done.explain("--no-report").stdout)
        assert "going on" in text and "step 21, forward" in text
        assert {path.name for path in (tmp_path / "run").iterdir()} == before
    finally:
        process.kill()
        process.communicate()


def test_a_caught_error_does_not_end_it(run):
    done = run("""
        def survives():
            try:
                torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                pass
        train(20, survives)
    """)
    assert done.status == 0, done.err
    assert not (done.place / "held.pickle").exists()  # it ended well


def test_a_kill_while_the_first_steps_are_recorded_leaves_a_snapshot(run):
    done = run("""
        step()
        time.sleep(5)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    text = shown(done.explain().stdout)
    assert "killed by SIGKILL" in shown(done.err + done.out) and "after step 1" in text
    assert "held" in text and (done.place / "held.pickle").stat().st_size > 1000


def test_a_script_without_pytorch_is_not_before_its_first_step(run):
    """Steps are those of PyTorch's optimizers: of JAX or TensorFlow none are counted."""
    job = "import os, signal, time\ntime.sleep(1.5)\n"
    done = run("os.kill(os.getpid(), signal.SIGKILL)", job=job)
    assert "killed by SIGKILL" in shown(done.err + done.out)
    assert "in the script (job.py:3)" in shown(done.explain().stdout)


HANGS = {
    "in Python": ("[None for _ in iter(int, 1)]", "job.py"),
    "in a lock": ("threading.Lock().acquire(), threading.Event().wait()", "job.py"),
    # A native call that keeps the interpreter's lock: no thread of Python runs.
    "in a native call": ("ctypes.PyDLL(None).sleep(100)", "job.py"),
}


@pytest.mark.parametrize("hang", HANGS)
def test_a_hang_is_noticed_and_not_ended(run, tmp_path, hang):
    code, where = HANGS[hang]
    process = run.begin(f"train(20, lambda: exec({code!r}))", "--stall", "2")
    said = next(line for line in process.stderr if line.startswith("oomph: no pass began"))
    assert "step 21, forward" in said and where in said and "goes on" in said
    assert process.poll() is None
    process.kill()
    _, more = process.communicate(timeout=120)
    assert "no pass began" not in more
    stacks = (tmp_path / "run/stacks.txt").read_text()
    assert "Thread 0x" in stacks or "Current thread" in stacks
    assert "job.py" in stacks and "in forward" in stacks


def test_what_is_slow_is_called_by_its_name(run):
    """Data loading, saving, and what comes before the first step."""
    done = run("""
        class Slow(torch.utils.data.Dataset):
            def __len__(self):
                return 30
            def __getitem__(self, at):
                if at == 25:
                    time.sleep(5)
                return torch.zeros(256)
        for batch in torch.utils.data.DataLoader(Slow(), batch_size=1):
            step()
    """, "--stall", "2")  # fmt: skip
    assert done.status == 0, done.err
    (first,) = [line for line in done.err.splitlines() if "no pass began" in line]
    assert "loading data" in first
    assert "passes begin again" in done.err


def test_evaluation_and_slow_first_steps_are_no_hang(run):
    done = run("""
        time.sleep(4)
        for _ in range(20):
            step()
        net.eval()
        until = time.monotonic() + 5
        with torch.no_grad():
            while time.monotonic() < until:
                net(torch.randn(64, 256, device="cuda"))
                time.sleep(0.2)
    """, "--stall", "3")  # fmt: skip
    assert done.status == 0 and "no pass began" not in done.err, done.err


def test_a_long_run_leaves_less_than_50_mb(run):
    done = run("""
        from oomph._recorder import black_box, window
        black_box.REST = window.REST = 1
        kept = []
        for number in range(4000):
            step()
            if number % 10 == 0:
                kept.append(torch.empty(1 << 18, device="cuda"))
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    assert done.size < 50e6
    assert (done.place / "black-box.bin").stat().st_size < 100_000
    assert "grew" in shown(done.explain().stdout)


RANKS = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
net = nn.parallel.DistributedDataParallel(nn.Linear(256, 256).cuda(), device_ids=[rank])
optimizer = torch.optim.AdamW(net.parameters())
for number in range(20):
    net(torch.zeros(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    time.sleep(0.1)
    if rank == 1 and number == 15:
        END
"""
END_OF_RANK = RANKS[: RANKS.index("END")].count("\n") + 1


def test_each_rank_has_its_own_and_the_one_that_died_is_named(tmp_path):
    (tmp_path / "job.py").write_text(
        RANKS.replace("END", "time.sleep(1.5); os.kill(os.getpid(), signal.SIGKILL)")
    )
    process = subprocess.run(
        [OOMPH, "run", "--gpu", "t4:2", "--out", "run", "--", "torchrun", "--standalone", "--nproc-per-node", "2", "job.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    done = Done(process, process.stdout, process.stderr, tmp_path / "run")
    assert done.status == 1, done.err
    for rank in ("rank-0", "rank-1"):
        assert (done.place / rank / "black-box.bin").stat().st_size < 100_000
    text = shown(done.explain().stdout)
    assert "rank-1: killed by SIGKILL" in text and "after step 16" in text
    assert f"job.py:{END_OF_RANK}" in text and "rank-0" in text


def test_a_rank_that_hangs_is_named(tmp_path):
    (tmp_path / "job.py").write_text(RANKS.replace("END", "time.sleep(7)"))
    process = subprocess.run(
        [OOMPH, "run", "--gpu", "t4:2", "--stall", "3", "--out", "run", "--", "torchrun", "--standalone", "--nproc-per-node", "2", "job.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    said = [line for line in process.stderr.splitlines() if "no pass began" in line]
    assert any(line.startswith("oomph: rank-1: ") for line in said), process.stderr
    assert f"job.py:{END_OF_RANK}" in " ".join(said)
    assert "rank-1: passes begin again" in process.stderr


def test_with_a_plan_and_without_a_box(run, tmp_path):
    plan(tmp_path, ("tf32", dict(enabled=True)))
    end = "lambda: os.kill(os.getpid(), signal.SIGKILL)"
    done = run(f"train(20, {end})", "--plan", "plan.toml")
    assert "killed by SIGKILL" in shown(done.explain().stdout)
    done = run(f"train(20, {end})", "--no-black-box", pause=0)
    assert not (done.place / "black-box.bin").exists() and done.status == 1


def test_a_full_disk_is_no_reason_to_end(machine, tmp_path):
    import resource

    (tmp_path / "job.py").write_text("PAUSE = 0.5\n" + JOB + "train(20, lambda: print('went on'))")
    done = subprocess.run(
        [OOMPH, "run", "--out", "run", "job.py"], cwd=tmp_path, env=machine, capture_output=True, text=True, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 10, 16 << 10)),
    )  # fmt: skip
    assert "went on" in done.stdout and "Traceback" not in done.stderr
    assert not (tmp_path / "run/black-box.bin").exists()


def test_a_gpu_that_is_used_late_is_looked_at(run):
    """CUDA is there some seconds before the first allocation, as where data are prepared meanwhile."""
    end = "train(20, lambda: os.kill(os.getpid(), signal.SIGKILL))"
    late = JOB.replace("net = Net()", "torch.cuda.init(); time.sleep(2.5)\nnet = Net()")
    done = run(end, job=late)
    assert "held GPU 0: " in shown(done.explain().stdout)
