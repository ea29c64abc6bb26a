"""A job in which one rank goes wrong: `torchrun … faulty.py KIND JOB CULPRIT [RANKS]`. Used by `faults.py`.

With RANKS and no launcher it starts its ranks itself, by `torch.multiprocessing.spawn`.
"""

import datetime, os, signal, sys, threading, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

kind, job, culprit = sys.argv[1], sys.argv[2], int(sys.argv[3])


def distributed(model, local, world):
    if job == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[local])
    if job == "fsdp":
        for layer in model:
            fully_shard(layer)
        return fully_shard(model)
    if job == "tp":
        mesh = init_device_mesh("cuda", (world,))
        for layer in model:
            parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


def go_wrong(pairs, rank, world):
    x, other = torch.ones(1000, device="cuda"), (culprit + 1) % world
    print("fault at", time.time(), file=sys.stderr, flush=True)
    if kind == "oom":
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    elif kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif kind == "exit":
        os._exit(0)
    elif kind == "error":
        raise ValueError("a bad sample")
    elif kind == "operation":
        dist.broadcast(x, culprit)
    elif kind == "count":
        dist.all_reduce(x[:999])
    elif kind == "type":
        dist.all_reduce(x.double())
    elif kind == "reduction":
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    elif kind == "sleep":
        time.sleep(120)
    elif kind == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif kind == "pipe":
        os.read(os.pipe()[0], 1)
    elif kind == "order":
        dist.all_reduce(x, group=pairs)
        torch.cuda.synchronize()
    elif kind == "receive":
        dist.recv(x, other)  # which nobody sends
        torch.cuda.synchronize()
    elif kind == "skip":
        return


def main(rank=None, world=None):
    if rank is not None:
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1"
        )
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", timeout=datetime.timedelta(minutes=30))
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = dist.new_group(list(range(world)))
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(840, 840), nn.ReLU(), nn.Linear(840, 840)) for _ in range(4)]
    ).cuda()
    model = distributed(model, local, world)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=job != "tp")
    for group in (None, pairs):  # PyTorch makes a group's communicator at its first collective
        dist.all_reduce(torch.ones(1, device="cuda"), group=group)
    for step in range(4):
        model(torch.randn(8, 840, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1 and rank == culprit and kind != "extra":
            go_wrong(pairs, rank, world)
        elif step == 1:
            dist.all_reduce(torch.ones(1000, device="cuda"))
        torch.cuda.synchronize()
    if kind == "extra" and rank == culprit:
        time.sleep(1)
        print("fault at", time.time(), file=sys.stderr, flush=True)
        dist.all_reduce(torch.ones(1000, device="cuda"))
        torch.cuda.synchronize()
    print("rank", rank, "is done", flush=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        os.environ["MASTER_PORT"] = str(20000 + os.getpid() % 20000)
        torch.multiprocessing.spawn(main, (int(sys.argv[4]),), nprocs=int(sys.argv[4]))
