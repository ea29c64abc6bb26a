"""An E(n)-equivariant graph network on ligands in their pockets: edges by index_add, no library for graphs."""

import torch
import torch.nn as nn


class EGCL(nn.Module):
    """Messages over edges, coordinates and features updated (Satorras et al., 2021)."""

    def __init__(self, hidden, attention=True):
        super().__init__()
        self.edge_mlp = nn.Sequential(
            nn.Linear(2 * hidden + 2, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU()
        )
        self.node_mlp = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden)
        )
        self.coord_mlp = nn.Sequential(
            nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1, bias=False)
        )
        self.att = nn.Sequential(nn.Linear(hidden, 1), nn.Sigmoid()) if attention else None

    def forward(self, h, x, row, col, edge_attr):
        diff = x[row] - x[col]
        radial = diff.pow(2).sum(-1, keepdim=True)
        m = self.edge_mlp(torch.cat([h[row], h[col], radial, edge_attr], -1))
        if self.att is not None:
            m = m * self.att(m)
        trans = diff / (radial.sqrt() + 1) * self.coord_mlp(m)
        x = x + torch.zeros_like(x).index_add(0, row, trans) / 32
        agg = torch.zeros_like(h).index_add(0, row, m)
        h = h + self.node_mlp(torch.cat([h, agg], -1))
        return h, x


class EGNN(nn.Module):
    def __init__(self, kinds=20, hidden=256, layers=6):
        super().__init__()
        self.embed = nn.Embedding(kinds, hidden)
        self.layers = nn.ModuleList([EGCL(hidden) for _ in range(layers)])
        self.out = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))

    def forward(self, z, x, row, col, bond, graph, n_graphs):
        h = self.embed(z)
        for layer in self.layers:
            h, x = layer(h, x, row, col, bond)
        pooled = torch.zeros(n_graphs, h.shape[1], device=h.device).index_add(0, graph, h)
        return self.out(pooled).squeeze(-1)


def make_batch(n_graphs=24, atoms=120, neighbours=40, device="cuda"):
    n = n_graphs * atoms
    graph = torch.arange(n_graphs, device=device).repeat_interleave(atoms)
    row = torch.arange(n, device=device).repeat_interleave(neighbours)
    offset = torch.randint(0, atoms, (len(row),), device=device)
    col = graph[row] * atoms + offset
    z = torch.randint(0, 20, (n,), device=device)
    x = torch.randn(n, 3, device=device) * 5
    bond = torch.randint(0, 2, (len(row), 1), device=device).float()
    return z, x, row, col, bond, graph, n_graphs


torch.manual_seed(0)
model = EGNN().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, weight_decay=1e-16)
for step in range(8):
    batch = make_batch()
    affinity = torch.randn(batch[-1], device="cuda")
    loss = nn.functional.l1_loss(model(*batch), affinity)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 2 == 1:
        print("step", step, "MAE", loss.item())
