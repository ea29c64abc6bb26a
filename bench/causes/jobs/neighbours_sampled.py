"""GraphSAGE on a graph of purchases: a batch of customers, their neighbours, and the neighbours of those."""

import os

import torch
from torch import nn

BATCH = 256 if os.environ.get("MENDED") else 8192
FANOUT = (15, 10)
NODES, FEATURES, CLASSES = 300_000, 100, 47


def sample(adjacency, nodes, k):
    """k random neighbours of each node, out of 32 known ones."""
    column = torch.randint(0, adjacency.shape[1], (len(nodes), k))
    return adjacency[nodes.unsqueeze(1), column].flatten()


class SageLayer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.self_, self.neigh, self.norm = nn.Linear(i, o), nn.Linear(i, o), nn.LayerNorm(o)

    def forward(self, own, near):
        near = self.neigh(near).view(len(own), -1, self.neigh.out_features)
        return torch.relu(self.norm(self.self_(own) + near.amax(1)))


adjacency = torch.randint(0, NODES, (NODES, 32), dtype=torch.int32).long()
features = torch.zeros(NODES, FEATURES, dtype=torch.float16)
first, second = SageLayer(FEATURES, 128).cuda(), SageLayer(128, 128).cuda()
top = nn.Linear(128, CLASSES).cuda()
opt = torch.optim.Adam([*first.parameters(), *second.parameters(), *top.parameters()], lr=3e-3)

for step in range(3):
    seeds = torch.randint(0, NODES, (BATCH,))
    hop1 = sample(adjacency, seeds, FANOUT[0])
    hop2 = sample(adjacency, hop1, FANOUT[1])
    x0, x1, x2 = (features[ids].cuda().float() for ids in (seeds, hop1, hop2))
    h1 = first(x1, x2)
    h0 = first(x0, x1)
    loss = nn.functional.cross_entropy(top(second(h0, h1)), torch.randint(CLASSES, (BATCH,)).cuda())
    opt.zero_grad()
    loss.backward()
    opt.step()
