"""A signed distance field is asked at every corner of a grid, slab by slab, to cut its surface out."""

import os

import torch
from torch import nn


class SirenLayer(nn.Linear):
    def __init__(self, i, o, w0=30.0):
        super().__init__(i, o)
        self.w0 = w0
        nn.init.uniform_(self.weight, -1 / i, 1 / i)

    def forward(self, x):
        return torch.sin(self.w0 * super().forward(x))


class Shape:
    """A shape that is learned from points, and then meshed."""

    def __init__(self, width=128, depth=4):
        layers = [SirenLayer(3, width)] + [SirenLayer(width, width, 1.0) for _ in range(depth)]
        self.f = nn.Sequential(*layers, nn.Linear(width, 1)).cuda()

    def fit(self, steps=3):
        opt = torch.optim.Adam(self.f.parameters(), lr=1e-4)
        for _ in range(steps):
            points = torch.rand(2048, 3, device="cuda").mul(2).sub(1).requires_grad_()
            d = self.f(points)
            slope = torch.autograd.grad(d.sum(), points, create_graph=True)[0]
            loss = d.abs().mean() + 0.1 * (slope.norm(dim=1) - 1).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()

    def grid(self, n):
        line = torch.linspace(-1, 1, n, device="cuda")
        for z in line.split(n // 16):
            yield torch.stack(torch.meshgrid(z, line, line, indexing="ij"), -1).view(-1, 3)

    def distances(self, n=96):
        return torch.cat([self.f(slab).squeeze(-1) for slab in self.grid(n)]).view(n, n, n)


shape = Shape()
shape.fit()
if os.environ.get("MENDED"):
    with torch.no_grad():
        field = shape.distances()
else:
    field = shape.distances()
print("cells that the surface cuts:", field[1:].sign().ne(field[:-1].sign()).sum().item())
