"""Ranks agree: an error on one makes all of them make the step again, and nobody hangs."""

import os
import subprocess
import sys

import oomph
import pytest
import torch
from oomph._training import rank_agreement
from torch import nn

from tests.support.command import ROOT

SCRIPT = os.path.join(ROOT, "bench", "library", "two_ranks.py")

GONE = r"""
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
import oomph

def loss(model, b):
    if dist.get_rank() == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
    return model(b).pow(2).mean()

def worker(rank, file):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    step = oomph.TrainStep(model, torch.optim.SGD(model.parameters(), lr=.1), loss, rungs=[], timeout=60)
    try:
        step(torch.randn(4, 4))
    except RuntimeError as error:
        assert all(p.grad is None for p in model.parameters())
        print(f"{rank} {type(error).__name__}\n", end="", flush=True)
    os._exit(0)

if __name__ == "__main__":
    workers = [mp.get_context("fork").Process(target=worker, args=(r, sys.argv[1])) for r in range(2)]
    [w.start() for w in workers]; [w.join() for w in workers]
"""


def test_two_ranks_recover_every_step():
    process = subprocess.run(
        [sys.executable, SCRIPT, "--steps", "12"], capture_output=True, text=True, timeout=240
    )
    assert process.returncode == 0 and "fine" in process.stdout, process.stderr[-3000:]


def test_a_rank_that_gives_up_tells_the_others(tmp_path):
    script = tmp_path / "gone.py"
    script.write_text(GONE)
    process = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store")], capture_output=True, text=True, timeout=240
    )  # fmt: skip
    assert sorted(process.stdout.split("\n")[:2]) == ["0 PeerFailed", "1 CannotFit"], process.stderr


class FSDPModule:
    """Stands for the class of that name, which FSDP2 mixes into modules."""


class Sharded(FSDPModule, nn.Linear):
    pass


def test_sharded_models_are_refused_before_training(monkeypatch):
    monkeypatch.setattr(rank_agreement.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(rank_agreement.dist, "get_world_size", lambda *a: 2)
    model = Sharded(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(oomph.Refused, match=r"FSDPModule.*micro_batch=N, retry=False"):
        oomph.TrainStep(model, optimizer, lambda m, b: m(b).mean())
    step = oomph.TrainStep(
        model, optimizer, lambda m, b: m(b).mean(), retry=False, micro_batch=2, check_loss=False
    )
    assert step(torch.randn(6, 2)).micro_batches == 3
    with pytest.raises(oomph.Refused, match="SyncBatchNorm"):
        oomph.TrainStep(
            nn.SyncBatchNorm(2), torch.optim.SGD(nn.SyncBatchNorm(2).parameters(), lr=0.1)
        )
