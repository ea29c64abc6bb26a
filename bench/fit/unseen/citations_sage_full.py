"""A full-batch graph network over 120,000 papers: sparse adjacency, three layers, the whole graph in every step."""

import torch
import torch.nn.functional as F
from torch import nn

NODES, EDGES, FEATURES, CLASSES = 120_000, 1_200_000, 128, 40


class SAGE(nn.Module):
    def __init__(self, width=256, layers=3):
        super().__init__()
        sizes = [FEATURES] + [width] * (layers - 1) + [CLASSES]
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.others = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in zip(sizes, sizes[1:]))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers - 1))

    def forward(self, x, source, target, degree):
        for i, (own, others) in enumerate(zip(self.own, self.others)):
            message = torch.zeros(len(x), x.shape[1], device=x.device)
            message.index_add_(0, target, x[source])
            x = own(x) + others(message / degree)
            if i < len(self.norms):
                x = F.dropout(F.relu(self.norms[i](x)), 0.5, self.training)
        return x


dev = torch.device("cuda")
source = torch.randint(0, NODES, (EDGES,), device=dev)
target = torch.randint(0, NODES, (EDGES,), device=dev)
degree = torch.ones(NODES, 1, device=dev).index_add_(0, target, torch.ones(EDGES, 1, device=dev))
x = torch.randn(NODES, FEATURES, device=dev)
y = torch.randint(0, CLASSES, (NODES,), device=dev)
train = torch.arange(0, NODES, 2, device=dev)

model = SAGE().to(dev)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(12):
    model.train()
    optimizer.zero_grad()
    out = model(x, source, target, degree)
    loss = F.cross_entropy(out[train], y[train])
    loss.backward()
    optimizer.step()
    print(f"epoch {epoch} loss {loss:.4f}")
