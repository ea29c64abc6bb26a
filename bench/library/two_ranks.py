"""Two ranks under DistributedDataParallel; errors injected on one: is every step recovered, and exact?

    python bench/library/two_ranks.py --steps 200

Processes talk over gloo on the CPU. In every step one rank, in turn, fails at some allocation (in every
fourth step both do). Afterwards parameters must be equal on both ranks, and to a run of plain
DistributedDataParallel over the same batches without faults.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from faults import Faults

import oomph


def job(rank):
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 2)
    )
    ddp = DistributedDataParallel(model)
    return ddp, torch.optim.AdamW(ddp.parameters(), lr=1e-2)


def batch(step, rank):
    g = torch.Generator().manual_seed(step * 2 + rank)
    return {"x": torch.randn(6, 8, generator=g), "y": torch.randn(6, 2, generator=g)}


def loss(model, b):
    return (model(b["x"]) - b["y"]).pow(2).mean()


def worker(rank, options, file, queue):
    torch.set_num_threads(1)
    logging.getLogger("oomph").setLevel(logging.ERROR)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    plain, plain_optimizer = job(rank)
    for step in range(options.steps):
        plain_optimizer.zero_grad()
        loss(plain, batch(step, rank)).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        plain_optimizer.step()
    ddp, optimizer = job(rank)
    train = oomph.TrainStep(
        ddp, optimizer, loss, max_norm=1.0, protect="always", grow_after=1, timeout=60
    )
    recovered = faults = 0
    began = time.time()
    for step in range(options.steps):
        fails = rank == step % 2 or step % 4 == 3
        mode = Faults([1 + (step * 7) % options.positions] if fails else [])
        own = batch(step, rank)
        with mode:
            report = train(own)
        faults += bool(mode.raised)
        recovered += bool(mode.raised) and report.attempts >= 1
    values = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    other = [torch.empty_like(values) for _ in range(2)]
    dist.all_gather(other, values)
    expected = torch.cat([p.detach().flatten() for p in plain.parameters()])
    queue.put(dict(
        rank=rank, steps=train.steps, faults=faults, recovered=recovered, failed_attempts=train.failed_attempts,
        ranks_equal=bool(torch.equal(*other)), bits_equal_to_plain=bool(torch.equal(values, expected)),
        largest_difference_from_plain=float((values - expected).abs().max()), seconds=round(time.time() - began, 1),
    ))  # fmt: skip
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--positions", type=int, default=70, help="allocations to fail at, in turn")
    parser.add_argument("--out")
    options = parser.parse_args()
    file = f"/tmp/oomph-two-ranks-{os.getpid()}"
    context = mp.get_context("fork")  # torch is imported once, and nothing has used it
    queue = context.SimpleQueue()
    workers = [context.Process(target=worker, args=(r, options, file, queue)) for r in range(2)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(300)
    hung = any(w.is_alive() for w in workers)
    for w in workers:
        w.kill()
    results = (
        []
        if hung or any(w.exitcode for w in workers)
        else sorted((queue.get() for _ in workers), key=lambda r: r["rank"])
    )
    for result in results:
        print(json.dumps(result))
    if options.out:
        with open(options.out, "w") as out:
            out.writelines(json.dumps(dict(r, torch=torch.__version__)) + "\n" for r in results)
    fine = results and all(
        r["ranks_equal"]
        and r["steps"] == options.steps
        and r["largest_difference_from_plain"] < 1e-4
        for r in results
    )
    print("hung" if hung else "fine" if fine else "FAILED")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
