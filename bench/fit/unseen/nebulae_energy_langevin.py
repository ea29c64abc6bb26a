"""Nebulae by an energy-based model: a buffer of samples, twelve steps of Langevin by autograd.grad, contrastive divergence, gradient penalty with create_graph."""

import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class Wide(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.c1 = nn.Conv2d(i, o, 3, stride, 1)
        self.c2 = nn.Conv2d(o, o, 3, 1, 1)
        self.s = nn.Conv2d(i, o, 1, stride) if stride != 1 or i != o else None

    def forward(self, x):
        h = self.c2(F.silu(self.c1(F.silu(x))))
        return h + (x if self.s is None else self.s(x))


class Energy(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, c, 3, 1, 1),
            Wide(c, c, 1),
            Wide(c, 2 * c, 2),
            Wide(2 * c, 2 * c, 1),
            Wide(2 * c, 4 * c, 2),
            Wide(4 * c, 4 * c, 1),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * c, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


class Buffer:
    def __init__(self, size=2000, side=48):
        self.store = torch.rand(size, 3, side, side) * 2 - 1

    def draw(self, n, fresh=0.05):
        self.index = [random.randrange(len(self.store)) for _ in range(n)]
        x = self.store[self.index].clone()
        new = int(n * fresh)
        x[:new] = torch.rand_like(x[:new]) * 2 - 1
        return x.cuda()

    def keep(self, x):
        self.store[self.index] = x.cpu()


def langevin(energy, x, steps=12, size=10.0, noise=0.005):
    for p in energy.parameters():
        p.requires_grad_(False)
    for _ in range(steps):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(energy(x).sum(), x)
        x = (x - size * g.clamp(-0.03, 0.03) + noise * torch.randn_like(x)).clamp(-1, 1)
    for p in energy.parameters():
        p.requires_grad_(True)
    return x.detach()


random.seed(31)
energy, buffer = Energy().cuda(), Buffer()
optimizer = torch.optim.Adam(energy.parameters(), lr=1e-4, betas=(0.0, 0.999))
for step in range(4):
    real = torch.rand(72, 3, 48, 48).cuda() * 2 - 1
    real += 0.005 * torch.randn_like(real)
    fake = langevin(energy, buffer.draw(72))
    buffer.keep(fake)
    up, down = energy(torch.cat([real, fake])).chunk(2)
    real.requires_grad_()
    (slope,) = torch.autograd.grad(energy(real).sum(), real, create_graph=True)
    penalty = slope.flatten(1).square().sum(1).mean()
    loss = up.mean() - down.mean() + 0.1 * (up**2 + down**2).mean() + 0.05 * penalty
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(energy.parameters(), 0.1)
    optimizer.step()
    print(step, loss.item(), penalty.item())
