"""Batches of molecules, of which one has a protein in it."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.GRUCell(width, width)

    def forward(self, nodes, edges):
        start, end = edges
        sent = torch.relu(self.message(torch.cat([nodes[start], nodes[end]], -1)))
        total = nodes.new_zeros(nodes.shape).scatter_add_(0, end[:, None].expand_as(sent), sent)
        return self.update(total, nodes)


class Molecules(nn.Module):
    def __init__(self, width=192, depth=5):
        super().__init__()
        self.atoms = nn.Embedding(100, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.energy = nn.Linear(width, 1)

    def forward(self, atoms, edges):
        nodes = self.atoms(atoms)
        for layer in self.layers:
            nodes = layer(nodes, edges)
        return self.energy(nodes).sum()


model = Molecules().cuda()
optimizer = torch.optim.Adam(model.parameters())
for atoms in (3100, 2900, 3000, 3050, 2950, 3010, 90000, 3000):
    kinds = torch.randint(0, 100, (atoms,), device="cuda")
    edges = torch.randint(0, atoms, (2, 4 * atoms), device="cuda")
    optimizer.zero_grad()
    model(kinds, edges).backward()
    optimizer.step()
