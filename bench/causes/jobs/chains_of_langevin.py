"""Langevin dynamics on an energy model: every state of all chains is kept where it was made, for a plot."""

import os

import torch
from torch import nn

energy = nn.Sequential(
    nn.Conv2d(3, 16, 4, 4), nn.Softplus(), nn.Conv2d(16, 32, 4, 4), nn.Softplus(), nn.Flatten(),
    nn.Linear(32 * 16, 1),
).cuda()  # fmt: skip
for p in energy.parameters():
    p.requires_grad_(False)


class Sampler:
    def __init__(self, chains, size=64, rate=0.01):
        self.x = torch.rand(chains, 3, size, size, device="cuda")
        self.rate = rate
        self.states = []

    def step(self):
        x = self.x.requires_grad_()
        (slope,) = torch.autograd.grad(energy(x).sum(), x)
        with torch.no_grad():
            noise = torch.randn_like(x) * (2 * self.rate) ** 0.5
            self.x = x - self.rate * slope + noise

    def note(self):
        if os.environ.get("MENDED"):
            self.states.append(self.x[:4].cpu())
        else:
            self.states.append(self.x.detach())


sampler = Sampler(chains=640)
for n in range(60):
    sampler.step()
    sampler.note()
mixing = torch.stack(
    [(a[:4] - b[:4]).abs().mean() for a, b in zip(sampler.states, sampler.states[1:])]
)
print(mixing.cpu())
