"""All ranks load the checkpoint to the GPU that it was saved from, which is the first one."""

import os

import torch
import torch.distributed as dist
from torch import nn

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
weights = {f"layer{i}": torch.empty(8192, 8192) for i in range(24)}
kept = {name: weight.to("cuda:0") for name, weight in weights.items()}
model = nn.Linear(4096, 4096).cuda()
for _ in range(3):
    model(torch.randn(64, 4096, device="cuda")).sum().backward()
    dist.all_reduce(model.weight.grad)
dist.destroy_process_group()
