"""Energies of a liquid from who is near whom. In one frame the barostat went wild, and everybody is near everybody."""

import os
from functools import partial

import torch
from torch import nn

ATOMS, CUTOFF = 900, 1.0
SANE = 80_000 if os.environ.get("MENDED") else None  # pairs that a frame may have


def trajectory(frames=9, wild=6):
    """Positions in a periodic box, as the simulation wrote them."""
    g = torch.Generator().manual_seed(8)
    for n in range(frames):
        side = 2.3 if n == wild else 5.6
        yield torch.rand(ATOMS, 3, generator=g) * side, side


def neighbours(positions, side):
    """Pairs nearer than the cutoff, and how far they are; on the CPU, as every loader does it."""
    d = positions[:, None] - positions[None]
    d = (d - side * (d / side).round()).norm(dim=-1)
    i, j = ((d < CUTOFF) & ~torch.eye(ATOMS, dtype=torch.bool)).nonzero(as_tuple=True)
    return i, j, d[i, j]


class Radial(nn.Module):
    def __init__(self, count=64):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, CUTOFF, count))

    def forward(self, d):
        return torch.exp(-((d[:, None] - self.centres) ** 2) * 400)


class Interaction(nn.Module):
    """Continuous-filter convolution, as in SchNet."""

    def __init__(self, f, radial=64):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(radial, f), nn.Softplus(), nn.Linear(f, f))
        self.inward, self.outward = nn.Linear(f, f, bias=False), nn.Linear(f, f)

    def forward(self, x, i, j, d, waves):
        w = self.filter(waves) * (0.5 * (torch.cos(d * torch.pi / CUTOFF) + 1))[:, None]
        message = self.inward(x)[j] * w
        return x + self.outward(torch.zeros_like(x).index_add(0, i, message))


class Potential(nn.Module):
    def __init__(self, f=96, layers=3):
        super().__init__()
        self.kind, self.radial = nn.Embedding(4, f), Radial()
        self.layers = nn.ModuleList(Interaction(f) for _ in range(layers))
        self.energy = nn.Sequential(nn.Linear(f, 32), nn.Softplus(), nn.Linear(32, 1))

    def forward(self, kinds, i, j, d):
        x, waves = self.kind(kinds), self.radial(d)
        for layer in self.layers:
            x = layer(x, i, j, d, waves)
        return self.energy(x).sum()


def train():
    torch.manual_seed(0)
    kinds = torch.randint(4, (ATOMS,), device="cuda")
    model = Potential().cuda()
    optimizer = torch.optim.Adam(model.parameters(), 5e-4)
    to = partial(torch.Tensor.to, device="cuda")
    for frame, (positions, side) in enumerate(trajectory()):
        pairs = neighbours(positions, side)
        if SANE and len(pairs[0]) > SANE:
            print(f"frame {frame} is not sane")
            continue
        energy = model(kinds, *map(to, pairs))
        loss = (energy - -7.5 * ATOMS).square() / ATOMS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train()
