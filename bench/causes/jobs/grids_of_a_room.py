"""A room as a radiance field over hashed grids. Each of the fine ones has four million rows."""

import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn

PRIMES = (1, 2_654_435_761, 805_459_861)


class HashGrid(nn.Module):
    """One resolution: a table, dense if it is coarse, hashed if it is fine."""

    def __init__(self, side, rows, features):
        super().__init__()
        self.side, self.dense = side, (side + 1) ** 3 <= rows
        self.rows = (side + 1) ** 3 if self.dense else rows
        self.table = nn.Parameter(
            torch.zeros(self.rows, features, device="cuda").uniform_(-1e-4, 1e-4)
        )
        corners = torch.tensor([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)])
        self.register_buffer("corners", corners, persistent=False)

    def index(self, xyz):
        if self.dense:
            x, y, z = xyz.unbind(-1)
            return (x * (self.side + 1) + y) * (self.side + 1) + z
        x, y, z = (xyz * torch.tensor(PRIMES, device=xyz.device)).unbind(-1)
        return torch.remainder(x ^ y ^ z, self.rows)

    def forward(self, points):
        scaled = points * self.side
        low = scaled.floor().clamp(0, self.side - 1)
        frac = (scaled - low).unsqueeze(1)
        at = low.long().unsqueeze(1) + self.corners
        weight = torch.where(self.corners.bool(), frac, 1 - frac).prod(-1, keepdim=True)
        return (F.embedding(self.index(at), self.table) * weight).sum(1)


class Field(nn.Module):
    def __init__(self, levels, log_rows, features, coarsest=16, finest=1536):
        super().__init__()
        growth = (finest / coarsest) ** (1 / (levels - 1))
        self.grids = nn.ModuleList(
            HashGrid(int(coarsest * growth**n), 2**log_rows, features) for n in range(levels)
        )
        self.density = nn.Sequential(nn.Linear(levels * features, 64), nn.ReLU(), nn.Linear(64, 16))
        self.colour = nn.Sequential(
            nn.Linear(15 + 3, 64), nn.ReLU(), nn.Linear(64, 3), nn.Sigmoid()
        )

    def forward(self, points, ways):
        h = self.density(torch.cat([grid(points) for grid in self.grids], -1))
        return F.softplus(h[:, 0]), self.colour(torch.cat([h[:, 1:], ways], -1))


def render(field, origin, way, samples):
    """The colours of rays, by quadrature."""
    depth = torch.linspace(0.05, 0.95, samples, device=origin.device)
    points = (origin[:, None] + way[:, None] * depth[:, None]).clamp(0, 1)
    sigma, rgb = field(points.flatten(0, 1), way[:, None].expand_as(points).flatten(0, 1))
    alpha = 1 - torch.exp(-sigma.view(-1, samples) * (0.9 / samples))
    past = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)
    return ((alpha * past[:, :-1]).unsqueeze(-1) * rgb.view(-1, samples, 3)).sum(1)


parser = argparse.ArgumentParser()
parser.add_argument("--levels", type=int, default=16)
parser.add_argument("--log-rows", type=int, default=18 if os.environ.get("MENDED") else 22)
parser.add_argument("--features", type=int, default=4)
parser.add_argument("--rays", type=int, default=256)
parser.add_argument("--samples", type=int, default=32)
parser.add_argument("--steps", type=int, default=4)
options = parser.parse_args()

field = Field(options.levels, options.log_rows, options.features).cuda()
optimizer = torch.optim.SGD(field.parameters(), lr=0.1)
for step in range(options.steps):
    origin = torch.rand(options.rays, 3, device="cuda")
    way = F.normalize(torch.randn(options.rays, 3, device="cuda"), dim=-1)
    seen = torch.rand(options.rays, 3, device="cuda")
    loss = F.mse_loss(render(field, origin, way, options.samples), seen)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(f"{step}: {-10 * torch.log10(loss + 1e-8).item():.2f} dB")
