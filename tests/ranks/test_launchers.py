"""Jobs of several ranks under real launchers, on virtual GPUs."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.support import schemas
from tests.support.command import OOMPH

HEAD = """
import os, sys, time
import torch, torch.distributed as dist
from torch import nn
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
local = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(local)
dist.init_process_group("nccl")
"""


@pytest.fixture
def ranks(tmp_path):
    """`ranks(code, n, *options)`: run `code` by torchrun as n ranks; the process and its JSON."""

    def run(code, count, *options, gpu=None, launcher=("torchrun", "--standalone"), timeout=300):
        script = tmp_path / "script.py"
        script.write_text(HEAD + textwrap.dedent(code))
        result = tmp_path / "result.json"
        words = [*launcher, "--nproc-per-node", str(count), str(script)] if launcher else [script]
        process = subprocess.run(
            [OOMPH, "run", "--gpu", gpu or f"rtx-4090:{count}", "--json", result,
             "--out", tmp_path / "run", *options, "--", *words],
            capture_output=True, text=True, cwd=tmp_path, timeout=timeout,
            env={**os.environ, "COLUMNS": "100"},
        )  # fmt: skip
        return process, schemas.read(result.read_text()) if result.exists() else None

    return run


TRAIN = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
def model():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)]).cuda()
def train(m):
    o = torch.optim.AdamW(m.parameters())
    for _ in range(2):
        m(torch.randn(8, 1024, device="cuda")).square().mean().backward(); o.step(); o.zero_grad()
train(nn.parallel.DistributedDataParallel(model(), device_ids=[local]))
base = torch.cuda.memory_allocated()
m = model()
for layer in m:
    fully_shard(layer)
fully_shard(m); train(m)
mesh = init_device_mesh("cuda", (1, world), mesh_dim_names=("dp", "tp"))
assert mesh["tp"].size() == world and mesh["tp"].get_local_rank() == rank
if rank == 1:
    extra = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
print(f"rank {rank} trained", flush=True)
"""

VALUES = """
x = torch.arange(3.0, device="cuda") + rank
dist.all_reduce(x); assert x.tolist() == [1, 3, 5], x
y = torch.full((2,), rank, device="cuda"); dist.broadcast(y, 1); assert y.tolist() == [1, 1], y
parts = [torch.zeros(2, dtype=torch.int64, device="cuda") for _ in range(world)]
dist.all_gather(parts, torch.tensor([rank, 7], device="cuda")); assert [p[0].item() for p in parts] == [0, 1]
z = torch.empty(2, device="cuda")
dist.reduce_scatter_tensor(z, torch.arange(4.0, device="cuda"), op=dist.ReduceOp.AVG)
assert z.tolist() == [2.0 * rank, 2.0 * rank + 1], z
counts = torch.empty(2, dtype=torch.int64, device="cuda")
dist.all_to_all_single(counts, torch.tensor([10 * rank, 10 * rank + 1], device="cuda"))
assert counts.tolist() == [rank, 10 + rank], counts
h = torch.tensor([1.5], device="cuda", dtype=torch.bfloat16) * (rank + 1)
dist.all_reduce(h, op=dist.ReduceOp.MAX); assert h.item() == 3.0
other, got = 1 - rank, torch.zeros(300, dtype=torch.int32, device="cuda")
ops = [dist.P2POp(dist.isend, torch.full((300,), rank, dtype=torch.int32, device="cuda"), other),
       dist.P2POp(dist.irecv, got, other)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
assert got.sum().item() == 300 * other
objects = [None] * world
dist.all_gather_object(objects, dict(rank=rank, text="x" * 1000 * rank))
assert [o["rank"] for o in objects] == [0, 1]
groups = [dist.new_group([r]) for r in range(world)]
alone = torch.ones(1, device="cuda"); dist.all_reduce(alone, group=groups[rank]); assert alone.item() == 1
big = torch.ones(1 << 20, device="cuda"); dist.all_reduce(big)
dist.barrier(); print(f"rank {rank} agrees", flush=True)
"""


def test_ddp_and_fsdp2_train_on_two_ranks(ranks):
    process, result = ranks(TRAIN, 2)
    assert process.returncode == 0, process.stderr
    assert "rank 0 trained" in process.stdout and "rank 1 trained" in process.stdout
    assert result["verdict"] == "fits" and [r["rank"] for r in result["ranks"]] == [0, 1]
    peaks = [r["peak"]["used_bytes"] for r in result["ranks"]]
    # NCCL and a context, but no context of one rank on the GPU of the other.
    assert all(1.2e9 < peak < 3e9 for peak in peaks), peaks
    # What rank 1 holds beside the job makes it the outlier, and the one that is reported.
    assert result["outlier"]["rank"] == 1
    assert abs(result["outlier"]["difference_bytes"] - (256 << 20)) < 32 << 20
    assert result["peak"]["used_bytes"] == max(peaks)
    assert "rank 1 holds" in process.stdout


PARALLEL = """
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, parallelize_module)
mesh = init_device_mesh("cuda", (world,))
torch.manual_seed(0)

# Context parallel: of four parts of the sequence each rank holds one near its ends and one between.
q, k, v = (torch.randn(1, 2, 128, 16, device="cuda") for _ in range(3))
with context_parallel(mesh, buffers=[q, k, v], buffer_seq_dims=[2, 2, 2]):
    own = [t.clone().requires_grad_() for t in (q, k, v)]
    part = F.scaled_dot_product_attention(*own, is_causal=True)
    part.sum().backward()
assert part.shape == (1, 2, 64, 16) and own[0].grad.shape == part.shape

# Pipeline parallel: the loss is that of the whole.
layers = [nn.Linear(8, 8, device="cuda") for _ in range(2)]
x, y = torch.randn(4, 8, device="cuda"), torch.randn(4, 8, device="cuda")
whole = F.mse_loss(layers[1](layers[0](x)), y); whole.backward()
expected = layers[rank].weight.grad.clone(); layers[rank].weight.grad = None
stage = PipelineStage(layers[rank], rank, world, torch.device("cuda", local))
schedule, losses = Schedule1F1B(stage, n_microbatches=2, loss_fn=F.mse_loss), []
schedule.step(x) if rank == 0 else schedule.step(target=y, losses=losses)
assert rank == 0 or abs(sum(losses).item() / 2 - whole.item()) < 1e-6
assert torch.allclose(layers[rank].weight.grad, expected, atol=1e-6)

# Sequence parallel: tensor parallel, with the norm over parts of the sequence.
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))
block, x = Block().cuda(), torch.randn(1, 6, 8, device="cuda")
expected = block(x)
parallelize_module(block, mesh, dict(
    norm=SequenceParallel(), down=RowwiseParallel(output_layouts=Replicate()),
    up=ColwiseParallel(input_layouts=Shard(1))))
out = block(x.chunk(world, 1)[rank])
assert out.shape == expected.shape and torch.allclose(out, expected, atol=1e-6), (out, expected)
print(f"rank {rank} computed", flush=True)
dist.destroy_process_group()
"""


def test_collectives_carry_values_and_kinds_of_parallelism_run(ranks):
    """Small and integral tensors; context, pipeline and sequence parallel; in one start."""
    process, result = ranks(VALUES + PARALLEL, 2, "-q")
    assert process.returncode == 0, process.stderr
    for rank in (0, 1):
        assert f"rank {rank} agrees" in process.stdout and f"rank {rank} computed" in process.stdout
    assert result["verdict"] == "fits"
    assert not [a for a in result["assumptions"] if a["kind"] == "value"]


def test_a_rank_that_does_not_come_to_a_broadcast_is_missed_by_its_root(ranks):
    """Its values come from the root alone, which waits for all ranks where it waits for the GPU."""
    process, result = ranks(
        """
        dist.all_reduce(torch.ones(1, device="cuda"))
        if rank == 1:
            time.sleep(100)
        dist.broadcast(torch.ones(1 << 20, device="cuda"), 0)
        torch.cuda.synchronize()
        """,
        2,
        "--no-measure",
        "--patience",
        "3",
        timeout=300,
    )
    assert process.returncode == 1
    assert (result["culprit"]["rank"], result["culprit"]["kind"]) == (1, "stuck"), result["culprit"]


WRONG = """
dist.all_reduce(torch.ones(1, device="cuda"))
x = torch.ones(1000, device="cuda")
if rank == 2:
    {}
else:
    dist.all_reduce(x)
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    "fault, kind, says",
    [
        (
            "torch.empty(1 << 40, dtype=torch.uint8, device='cuda')",
            "out_of_memory",
            "out of memory",
        ),
        ("os.kill(os.getpid(), 9)", "ended", "it was killed by SIGKILL"),
        ("dist.all_reduce(x[:10])", "mismatch", "10 float32 where ranks 0, 1 called"),
        ("time.sleep(100)", "stuck", "rank 2 has done nothing"),
        (
            "dist.all_reduce(x); torch.cuda.synchronize(); time.sleep(1); dist.all_reduce(x)",
            "mismatch",
            "2 of 3 ranks never called",
        ),
    ],
)
def test_the_rank_that_goes_wrong_is_named(ranks, fault, kind, says):
    # Short only where it decides: a busy machine may let a rank stand for some seconds.
    patience = ["--patience", "3"] if kind == "stuck" else []
    process, result = ranks(WRONG.format(fault), 3, "--no-measure", *patience)
    assert process.returncode == (3 if kind == "out_of_memory" else 1), process.stderr
    assert result["culprit"]["rank"] == 2
    # A rank that died may be found by the others first or by its launcher.
    assert result["culprit"]["kind"] in (kind, "failed"), result["culprit"]
    assert says in result["culprit"]["failure"]
    assert "culprit" in process.stdout


def test_a_script_that_fails_in_its_first_step_ends(ranks):
    """Between two forward passes of DistributedDataParallel, where its first buckets are held."""
    process, result = ranks(
        """
        ddp = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(8, 8).cuda(), gradient_as_bucket_view=True
        )
        ddp(torch.ones(1, 8, device="cuda")).sum().backward()
        raise ValueError("a mistake")
        """,
        2,
        "--no-measure",
        timeout=300,
    )
    assert process.returncode == 1 and "a mistake" in result["culprit"]["failure"]


def test_ranks_of_one_gpu_share_its_memory(ranks):
    process, result = ranks(
        """
        x = torch.empty(10 << 30, dtype=torch.uint8, device="cuda:20")
        dist.barrier()
        y = torch.empty(4 << 30, dtype=torch.uint8, device="cuda:20")
        """,
        2,
        "--no-measure",
        gpu="rtx-4090:21",
    )
    assert process.returncode == 3, process.stderr
    assert result["verdict"] == "out_of_memory"
    assert result["culprit"]["kind"] in ("out_of_memory", "failed"), result["culprit"]
    assert "out of memory" in result["culprit"]["failure"]


def test_one_rank_of_a_large_job_runs_without_the_others(ranks):
    process, result = ranks(
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        # Another thread that calls the store, which is Python here, aborts the process if Python ends meanwhile.
        from oomph._recorder import rehearsal
        asked, begun = [], time.monotonic()
        rehearsal._Store.check = lambda store, keys: asked.append(keys) or False
        mesh = init_device_mesh("cuda", (64, 16), mesh_dim_names=("replicate", "shard"))
        m = nn.Linear(8192, 8192)  # on the CPU, which is not written
        fully_shard(m.cuda(), mesh=mesh)
        o = torch.optim.AdamW(m.parameters())
        m(torch.randn(4, 8192, device="cuda")).sum().backward(); o.step()
        print(f"rank {rank} of {world}, {local}, {torch.cuda.memory_allocated()}", flush=True)
        time.sleep(max(0, begun + 1.2 - time.monotonic()))
        assert not asked
        """,
        0,
        "--world-size", "1024", "--ranks", "3,1023",
        gpu="rtx-4090",
        launcher=None,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "rank 3 of 1024, 3" in process.stdout and "rank 1023 of 1024, 7" in process.stdout
    assert [r["rank"] for r in result["ranks"]] == [3, 1023]
    assert any("1022 of 1024 ranks did not run" in a["what"] for a in result["assumptions"])
    # A sixteenth of parameters, gradients and two states of 256 MiB each.
    held = int(process.stdout.split("rank 3 of 1024, 3, ")[1].split()[0])
    assert 64 << 20 <= held <= 96 << 20


def test_no_watchdog_outlives_a_rank(ranks, tmp_path):
    """It may call CUDA while the process is torn down: something holds the process group until then."""
    (tmp_path / "late.c").write_text(
        "#include <stdlib.h>\n"
        'static void look(void) { system("cat /proc/$PPID/task/*/comm >> threads.txt"); }\n'
        "void begin(void) { atexit(look); }\n"
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "late.so", "late.c"], cwd=tmp_path, check=True)
    code = """
        import ctypes, threading
        ctypes.CDLL("./late.so").begin()
        m = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).cuda(), device_ids=[local])
        m(torch.randn(8, 8, device="cuda")).sum().backward()
        names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
        assert any(name.startswith("pt_nccl_watch") for name in names)
        # As a reference that no garbage collector finds does.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
    """
    process, result = ranks(code, 2)
    assert result["verdict"] == "fits", process.stderr
    threads = (tmp_path / "threads.txt").read_text().split("\n")
    assert sum(name.startswith("python") for name in threads) >= 2
    assert not any(name.startswith("pt_nccl_watch") for name in threads)


def test_what_cannot_be_started_is_said(tmp_path):
    oomph = OOMPH
    for words, says in [
        (["nosuchlauncher", "x.py"], "no program of this name"),
        (["--world-size", "8", "--ranks", "8", __file__], "no rank 8 in a world size of 8"),
        (["--world-size", "8", "--", "torchrun", "x.py"], "without its launcher"),
    ]:
        run = subprocess.run(
            [oomph, "run", "--gpu", "t4", *words], capture_output=True, text=True, cwd=tmp_path
        )
        assert run.returncode == 2 and says in run.stderr, run.stderr
    alone = subprocess.run(
        [sys.executable, "-m", "oomph.launch", "x.py"], capture_output=True, text=True
    )
    assert alone.returncode == 2 and "oomph run --gpu NAME:8 -- torchrun" in alone.stderr
