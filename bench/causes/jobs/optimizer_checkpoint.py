"""Model and optimizer are resumed from a file that was read to the GPU."""
import os
import tempfile

import torch
from torch import nn


def make():
    return nn.Sequential(*[nn.Sequential(nn.Linear(1536, 1536), nn.LayerNorm(1536), nn.ReLU()) for _ in range(10)])


def save(path):
    model = make()
    moments = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    torch.save({"model": model.state_dict(), "average": moments}, path)


with tempfile.TemporaryDirectory() as folder:
    save(f"{folder}/run.ckpt")
    state = torch.load(f"{folder}/run.ckpt", map_location="cuda:0")
model = make().cuda()
model.load_state_dict(state["model"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    x = torch.randn(32, 1536, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
