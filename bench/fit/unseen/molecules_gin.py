"""A graph isomorphism network over batched molecules, with index_add_."""

import torch
import torch.nn as nn
import torch.nn.functional as F

dev = "cuda"
torch.manual_seed(7)


class GINLayer(nn.Module):
    def __init__(self, dim, bond_types):
        super().__init__()
        self.bond = nn.Embedding(bond_types, dim)
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.BatchNorm1d(2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim)
        )
        self.bn = nn.BatchNorm1d(dim)

    def forward(self, h, src, dst, kind):
        msg = F.relu(h[src] + self.bond(kind))
        agg = torch.zeros_like(h).index_add_(0, dst, msg)
        h = self.bn(self.mlp((1 + self.eps) * h + agg))
        return F.dropout(F.relu(h), 0.2, self.training)


class GIN(nn.Module):
    def __init__(self, dim=300, layers=5, tasks=12):
        super().__init__()
        self.atom = nn.Embedding(119, dim)
        self.layers = nn.ModuleList(GINLayer(dim, 6) for _ in range(layers))
        self.readout = nn.Linear(dim, tasks)

    def forward(self, atoms, src, dst, kind, graph, n_graphs):
        h = self.atom(atoms)
        outs = [h]
        for layer in self.layers:
            h = layer(h, src, dst, kind) + h
            outs.append(h)
        h = sum(outs)
        pooled = h.new_zeros(n_graphs, h.size(1)).index_add_(0, graph, h)
        count = h.new_zeros(n_graphs).index_add_(0, graph, torch.ones_like(graph, dtype=h.dtype))
        return self.readout(pooled / count.clamp(min=1).unsqueeze(1))


def make_batch(n_graphs=2048, atoms=24, bonds=52):
    n = n_graphs * atoms
    offset = torch.arange(n_graphs, device=dev).repeat_interleave(bonds) * atoms
    src = torch.randint(0, atoms, (n_graphs * bonds,), device=dev) + offset
    dst = torch.randint(0, atoms, (n_graphs * bonds,), device=dev) + offset
    kind = torch.randint(0, 6, (n_graphs * bonds,), device=dev)
    graph = torch.arange(n_graphs, device=dev).repeat_interleave(atoms)
    y = torch.randint(0, 2, (n_graphs, 12), device=dev).float()
    return torch.randint(0, 119, (n,), device=dev), src, dst, kind, graph, y


model = GIN().to(dev)
optim = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(6):
    atoms, src, dst, kind, graph, y = make_batch()
    optim.zero_grad()
    pred = model(atoms, src, dst, kind, graph, y.shape[0])
    loss = F.binary_cross_entropy_with_logits(pred, y)
    loss.backward()
    optim.step()
    print(f"epoch={epoch} loss={loss:.4f}")
