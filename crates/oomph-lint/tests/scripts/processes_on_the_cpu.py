"""Processes that talk by gloo."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def work(rank, size):
    dist.init_process_group("gloo", rank=rank, world_size=size)
    net = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer.zero_grad()
    net(torch.ones(1, 1)).sum().backward()
    optimizer.step()
