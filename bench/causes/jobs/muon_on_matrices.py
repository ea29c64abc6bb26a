"""A network of matrices only, with Muon: the momentum that it makes at its first step is one copy too many."""

import os

import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return x + self.down(nn.functional.glu(self.up(nn.functional.rms_norm(x, x.shape[-1:]))))


def batches(count, size=32, width=2048):
    for _ in range(count):
        yield torch.randn(size, width, device="cuda"), torch.randn(size, width, device="cuda")


with torch.device("cuda"):
    network = nn.Sequential(*(Gate(2048) for _ in range(9)))
if os.environ.get("MENDED"):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02)
else:
    optimizer = torch.optim.Muon(network.parameters(), lr=0.02, momentum=0.95)
for x, y in batches(3):
    loss = (network(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
