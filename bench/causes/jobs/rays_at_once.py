"""A radiance field: far more rays than fit are rendered at once."""

import math
import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Options:
    rays: int = 1024 if os.environ.get("MENDED") else 8192
    samples: int = 96
    octaves: int = 10
    near: float = 2.0
    far: float = 6.0


class Field(nn.Module):
    def __init__(self, octaves, width=128):
        super().__init__()
        self.octaves = octaves
        inputs = 3 * (1 + 2 * octaves)
        self.low = nn.ModuleList(
            [nn.Linear(inputs, width)] + [nn.Linear(width, width) for _ in range(3)]
        )
        self.high = nn.ModuleList([nn.Linear(width + inputs, width), nn.Linear(width, width)])
        self.density, self.colour = nn.Linear(width, 1), nn.Linear(width, 3)

    def encode(self, points):
        bands = 2.0 ** torch.arange(self.octaves, device=points.device) * math.pi
        angles = (points[..., None] * bands).flatten(-2)
        return torch.cat([points, angles.sin(), angles.cos()], -1)

    def forward(self, points):
        code = self.encode(points)
        h = code
        for layer in self.low:
            h = F.relu(layer(h))
        h = torch.cat([h, code], -1)
        for layer in self.high:
            h = F.relu(layer(h))
        return self.density(h).squeeze(-1), self.colour(h).sigmoid()


def render(field, origins, directions, options):
    depths = torch.linspace(options.near, options.far, options.samples, device=origins.device)
    points = origins[:, None] + directions[:, None] * depths[:, None]
    density, colour = field(points)
    step = (options.far - options.near) / options.samples
    alpha = 1 - torch.exp(-F.softplus(density) * step)
    through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha[:, :-1]], 1), 1)
    return ((alpha * through)[..., None] * colour).sum(1)


def main():
    options = Options()
    field = Field(options.octaves).cuda()
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
    for iteration in range(4):
        origins = torch.randn(options.rays, 3, device="cuda")
        directions = F.normalize(torch.randn(options.rays, 3, device="cuda"), dim=-1)
        pixels = torch.rand(options.rays, 3, device="cuda")
        loss = F.mse_loss(render(field, origins, directions, options), pixels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
