"""An interatomic potential checkpoints its layers, but forces are gradients with a graph, which keeps all that is recomputed."""

import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

FORCES = not os.environ.get("MENDED")


class Interaction(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.inner, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, rbf, here, there):
        message = self.inner(x)[there] * self.filter(rbf)
        return x + nn.functional.silu(self.out(torch.zeros_like(x).index_add(0, here, message)))


class Potential(nn.Module):
    def __init__(self, width=128, depth=6):
        super().__init__()
        self.kinds = nn.Embedding(90, width)
        self.layers = nn.ModuleList(Interaction(width) for _ in range(depth))
        self.read = nn.Linear(width, 1)
        self.register_buffer("centres", torch.linspace(0, 6, 32))

    def forward(self, kinds, places, here, there):
        distance = (places[here] - places[there]).norm(dim=1, keepdim=True)
        rbf = torch.exp(-4 * (distance - self.centres) ** 2)
        x = self.kinds(kinds)
        for layer in self.layers:
            x = checkpoint(layer, x, rbf, here, there, use_reentrant=False)
        return self.read(x).sum()


model = Potential().cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, amsgrad=True)
ATOMS, PAIRS = 8_000, 200_000
for _ in range(2):
    kinds = torch.randint(0, 90, (ATOMS,), device="cuda")
    places = torch.rand(ATOMS, 3, device="cuda", requires_grad=FORCES)
    here, there = torch.randint(0, ATOMS, (2, PAIRS), device="cuda")
    energy = model(kinds, places, here, there)
    loss = (energy / ATOMS).square()
    if FORCES:
        (force,) = torch.autograd.grad(-energy, places, create_graph=True)
        loss = loss + force.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
