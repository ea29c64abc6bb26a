"""Molecules are joined into one large graph, and messages go along its bonds. Too many molecules are in it."""

import os

import torch
from torch import nn

MOLECULES = 500 if os.environ.get("MENDED") else 4000
ATOMS, BONDS, WIDTH = 24, 52, 96


def scatter_sum(values, index, size):
    return values.new_zeros(size, values.shape[1]).index_add(0, index, values)


class Message(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.update = nn.GRUCell(width, width)

    def forward(self, x, edges):
        here, there = edges
        return self.update(
            scatter_sum(self.message(torch.cat([x[here], x[there]], 1)), there, len(x)), x
        )


class Property(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.atoms = nn.Embedding(20, WIDTH)
        self.layers = nn.ModuleList(Message(WIDTH) for _ in range(layers))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, kinds, edges, owner, molecules):
        x = self.atoms(kinds)
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(scatter_sum(x, owner, molecules)).squeeze(1)


def collate(molecules):
    first = torch.arange(molecules).repeat_interleave(BONDS) * ATOMS
    edges = torch.randint(0, ATOMS, (2, molecules * BONDS)) + first
    owner = torch.arange(molecules).repeat_interleave(ATOMS)
    return torch.randint(0, 20, (molecules * ATOMS,)), edges, owner


model = Property().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    kinds, edges, owner = (part.to("cuda") for part in collate(MOLECULES))
    energy = torch.randn(MOLECULES, device="cuda")
    optimizer.zero_grad()
    loss = (model(kinds, edges, owner, MOLECULES) - energy).abs().mean()
    loss.backward()
    optimizer.step()
