"""Neighbourhoods of users are sampled whole. One user is a shop, whom everybody knows."""

import os
import random

import torch
from torch import nn

random.seed(2)
MOST = 8_000 if os.environ.get("MENDED") else 10**7


def neighbourhood(step):
    """Nodes, edges and the seeds among them."""
    edges = 400_000 if step == 9 else random.randint(4_000, 8_000)
    edges = min(edges, MOST)
    nodes = edges // 2
    return torch.randn(nodes, 64), torch.randint(0, nodes, (2, edges)), torch.arange(32)


class GAT(nn.Module):
    """Weighs messages by what both ends say."""

    def __init__(self, i, o):
        super().__init__()
        self.w, self.a = nn.Linear(i, o), nn.Linear(2 * o, 1)

    def forward(self, x, edges):
        x = self.w(x)
        both = torch.cat([x[edges[0]], x[edges[1]]], 1)
        weight = torch.exp(nn.functional.leaky_relu(self.a(both)).clamp(max=10))
        total = torch.zeros(len(x), 1, device=x.device).index_add(0, edges[1], weight)
        message = x[edges[0]] * weight / total[edges[1]]
        return torch.zeros_like(x).index_add(0, edges[1], message).relu()


class Fraud(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = GAT(64, 128), GAT(128, 128), nn.Linear(128, 2)

    def forward(self, x, edges, seeds):
        return self.out(self.two(self.one(x, edges), edges)[seeds])


fraud = Fraud().cuda()
optimizer = torch.optim.Adam(fraud.parameters(), 1e-3)
for step in range(12):
    x, edges, seeds = (part.cuda() for part in neighbourhood(step))
    loss = nn.functional.cross_entropy(
        fraud(x, edges, seeds), torch.zeros(32, dtype=torch.long, device="cuda")
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
