"""Entities and relations of a knowledge graph (ComplEx), in two tables, one for each half of a complex number."""

import os

import torch
from torch import nn

WIDTH = 32 if os.environ.get("MENDED") else 256


class ComplEx(nn.Module):
    def __init__(self, entities, relations, width):
        super().__init__()
        kind = dict(device="cuda")
        self.real = nn.Embedding(entities, width, **kind)
        self.imaginary = nn.Embedding(entities, width, **kind)
        self.relation = nn.Embedding(relations, 2 * width, **kind)

    def forward(self, head, relation, tail):
        a, b = self.real(head), self.imaginary(head)
        c, d = self.real(tail), self.imaginary(tail)
        r, s = self.relation(relation).chunk(2, -1)
        return (r * (a * c + b * d) + s * (a * d - b * c)).sum(-1)


graph = ComplEx(900_000, 200, WIDTH)
optimizer = torch.optim.SGD(graph.parameters(), lr=0.5)
for _ in range(3):
    head, tail = torch.randint(0, 900_000, (2, 1024), device="cuda")
    relation = torch.randint(0, 200, (1024,), device="cuda")
    loss = nn.functional.softplus(-graph(head, relation, tail)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
