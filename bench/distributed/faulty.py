"""A job in which one rank goes wrong: `torchrun … faulty.py KIND JOB CULPRIT`. Used by `faults.py`."""
import datetime, os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

kind, job, culprit = sys.argv[1], sys.argv[2], int(sys.argv[3])
local = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(local)
dist.init_process_group("nccl", timeout=datetime.timedelta(minutes=30))
rank, world = dist.get_rank(), dist.get_world_size()
pairs = dist.new_group(list(range(world)))
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(4)]).cuda()
if job == "ddp":
    model = nn.parallel.DistributedDataParallel(model, device_ids=[local])
elif job == "fsdp":
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())


for group in (None, pairs):  # PyTorch makes a group's communicator at its first collective
    dist.all_reduce(torch.ones(1, device="cuda"), group=group)


def go_wrong():
    x = torch.ones(1000, device="cuda")
    print("fault at", time.time(), file=sys.stderr, flush=True)
    if kind == "oom":
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    elif kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
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
    elif kind == "sleep":
        time.sleep(120)
    elif kind == "order":
        dist.all_reduce(x, group=pairs)
        torch.cuda.synchronize()
    elif kind == "skip":
        return


for step in range(4):
    model(torch.randn(8, 512, device="cuda")).square().mean().backward()
    optimizer.step(); optimizer.zero_grad()
    if step == 1 and rank == culprit:
        go_wrong()
    elif step == 1:
        dist.all_reduce(torch.ones(1000, device="cuda"))
    torch.cuda.synchronize()
print("rank", rank, "is done", flush=True)
