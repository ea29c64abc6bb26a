"""MeshGraphNet for cloth: encode, fifteen rounds over edges and nodes, decode; several meshes in one graph, noise on inputs."""

import torch
from torch import nn


def mlp(i, o, hidden=128, norm=True):
    layers = [
        nn.Linear(i, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, o),
    ]
    if norm:
        layers.append(nn.LayerNorm(o))
    return nn.Sequential(*layers)


class Processor(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.edge = mlp(3 * dim, dim)
        self.node = mlp(2 * dim, dim)

    def forward(self, h, e, src, dst):
        e_new = self.edge(torch.cat([e, h[src], h[dst]], dim=-1))
        agg = torch.zeros_like(h).index_add_(0, dst, e_new)
        return h + self.node(torch.cat([h, agg], dim=-1)), e + e_new


class MeshGraphNet(nn.Module):
    def __init__(self, node_in=12, edge_in=7, out=3, dim=128, rounds=15):
        super().__init__()
        self.node_in, self.edge_in = mlp(node_in, dim), mlp(edge_in, dim)
        self.rounds = nn.ModuleList([Processor(dim) for _ in range(rounds)])
        self.out = mlp(dim, out, norm=False)

    def forward(self, nodes, edges, src, dst):
        h, e = self.node_in(nodes), self.edge_in(edges)
        for r in self.rounds:
            h, e = r(h, e, src, dst)
        return self.out(h)


def grid_mesh(n):
    """Edges of a triangulated n by n sheet, both ways."""
    ids = torch.arange(n * n).view(n, n)
    pairs = torch.cat(
        [
            torch.stack([ids[:, :-1].flatten(), ids[:, 1:].flatten()]),
            torch.stack([ids[:-1].flatten(), ids[1:].flatten()]),
            torch.stack([ids[:-1, :-1].flatten(), ids[1:, 1:].flatten()]),
        ],
        1,
    )
    return torch.cat([pairs, pairs.flip(0)], 1)


def main(meshes=4, side=48, steps=8, noise=3e-3):
    torch.manual_seed(0)
    edge_index = grid_mesh(side)
    n = side * side
    src, dst = torch.cat([edge_index + k * n for k in range(meshes)], 1).cuda()
    model = MeshGraphNet().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
    for step in range(steps):
        world = torch.randn(meshes * n, 3, device="cuda")
        velocity = torch.randn_like(world) + noise * torch.randn_like(world)
        kind = torch.nn.functional.one_hot(torch.randint(0, 9, (meshes * n,), device="cuda"), 9)
        rel = world[src] - world[dst]
        edges = torch.cat([rel, rel.norm(dim=1, keepdim=True), velocity[src] - velocity[dst]], 1)
        target = torch.randn_like(world)
        pred = model(torch.cat([velocity, kind.float()], 1), edges, src, dst)
        loss = ((pred - target) ** 2).sum(1)[kind[:, 0] == 0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay.step()
        if step % 4 == 3:
            print(step, loss.item())


if __name__ == "__main__":
    main()
