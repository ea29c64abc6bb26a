"""Drugged organoids from untreated ones by optimal transport: two input-convex networks in a minimax game, maps as gradients of potentials (create_graph), weights clamped, two Adams."""

import torch
from torch import nn
from torch.nn import functional as F


class ICNN(nn.Module):
    """Convex in x: weights between hidden layers are kept nonnegative."""

    def __init__(self, genes, widths):
        super().__init__()
        self.from_x = nn.ModuleList(nn.Linear(genes, w) for w in [*widths, 1])
        self.from_z = nn.ModuleList(
            nn.Linear(a, b, bias=False) for a, b in zip(widths, [*widths[1:], 1])
        )
        for layer in self.from_z:
            nn.init.uniform_(layer.weight, 0, 2 / layer.in_features)

    def forward(self, x):
        z = F.softplus(self.from_x[0](x))
        for skip, layer in zip(self.from_x[1:], self.from_z):
            z = F.softplus(layer(z) + skip(x))
        return z.squeeze(1) + 0.05 * x.square().sum(1)

    def push(self, x):
        x = x if x.requires_grad else x.requires_grad_()
        return torch.autograd.grad(self(x).sum(), x, create_graph=True)[0]

    def negative_part(self):
        return sum(layer.weight.clamp(max=0).square().sum() for layer in self.from_z)

    @torch.no_grad()
    def make_convex(self):
        for layer in self.from_z:
            layer.weight.clamp_(min=0)


GENES, CELLS = 1024, 16_384
f = ICNN(GENES, [1536, 1536, 1536]).cuda()
g = ICNN(GENES, [1536, 1536, 1536]).cuda()
opt_f = torch.optim.Adam(f.parameters(), lr=1e-4, betas=(0.5, 0.9))
opt_g = torch.optim.Adam(g.parameters(), lr=1e-4, betas=(0.5, 0.9))
profile = torch.rand(GENES)


def untreated(n):
    return torch.poisson(profile.expand(n, -1) * 2).log1p().cuda()


def treated(n):
    return torch.poisson(profile.flip(0).expand(n, -1) * 3).log1p().cuda()


for outer in range(2):
    f.requires_grad_(False)
    for inner in range(2):
        x = untreated(CELLS)
        moved = g.push(x)
        loss_g = (f(moved) - (moved * x).sum(1)).mean() + g.negative_part()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
    f.requires_grad_(True)

    x, y = untreated(CELLS), treated(CELLS)
    moved = g.push(x).detach()
    loss_f = f(y).mean() - f(moved).mean()
    opt_f.zero_grad()
    loss_f.backward()
    opt_f.step()
    f.make_convex()
    print(f"round {outer}: g {loss_g.item():.3f}, f {loss_f.item():.3f}")
