"""A normalizing flow; how far each step moved the likelihood is added up, graph and all, to be printed."""

import os

import torch
from torch import nn


class Coupling(nn.Module):
    def __init__(self, size, hidden, flip):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(
            nn.Linear(size // 2, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
            nn.Linear(hidden, size),
        )  # fmt: skip

    def forward(self, x):
        a, b = x.chunk(2, 1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, 1)
        s = s.tanh()
        b = b * s.exp() + t
        return torch.cat([b, a] if self.flip else [a, b], 1), s.sum(1)


class Flow(nn.Module):
    def __init__(self, size=64, hidden=1024, couplings=8):
        super().__init__()
        self.parts = nn.ModuleList(Coupling(size, hidden, n % 2) for n in range(couplings))

    def log_prob(self, x):
        total = 0
        for part in self.parts:
            x, volume = part(x)
            total = total + volume
        return total - 0.5 * x.square().sum(1)


flow = Flow().cuda()
opt = torch.optim.Adamax(flow.parameters(), lr=1e-3)
moved = 0
for step in range(16):
    x = torch.randn(4096, 64, device="cuda")
    before = flow.log_prob(x).mean()
    opt.zero_grad()
    (-before).backward()
    opt.step()
    after = flow.log_prob(x).mean()
    gain = after - before.detach()
    moved += gain.item() if os.environ.get("MENDED") else gain
print("moved by", float(moved))
