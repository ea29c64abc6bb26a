"""Radiance field of a garden, stored on a grid and fitted to photos without a network."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")
device = torch.device("cuda")


class VoxelGrid(nn.Module):
    """28 numbers per corner: density and 9 spherical harmonics for each colour."""

    def __init__(self, resolution=256, channels=28):
        super().__init__()
        shape = (1, channels, resolution, resolution, resolution)
        self.values = nn.Parameter(torch.zeros(shape, device=device))

    def forward(self, points):
        where = points.view(1, 1, 1, -1, 3)
        return F.grid_sample(self.values, where, align_corners=True).flatten(1)[..., :].view(28, -1)


class Planes(nn.Module):
    def __init__(self, resolution=256, channels=28):
        super().__init__()
        self.values = nn.Parameter(
            0.1 * torch.randn(3, channels, resolution, resolution, device=device)
        )

    def forward(self, points):
        pairs = torch.stack([points[:, [0, 1]], points[:, [1, 2]], points[:, [0, 2]]])
        found = F.grid_sample(self.values, pairs.unsqueeze(1), align_corners=True)
        return found.squeeze(2).prod(0)


field = Planes() if MENDED else VoxelGrid()
optimizer = torch.optim.SGD(field.parameters(), lr=10.0)


def render(origins, directions, samples=96):
    t = torch.linspace(0.1, 1.0, samples, device=device)
    points = origins[:, None] + directions[:, None] * t[None, :, None]
    values = field(points.reshape(-1, 3).clamp(-1, 1)).view(28, len(origins), samples)
    alpha = 1 - torch.exp(-F.softplus(values[0]) / samples)
    through = torch.cumprod(1 - alpha + 1e-6, 1)
    harmonics = torch.randn(9, len(origins), 1, device=device)
    colour = torch.sigmoid((values[1:].view(3, 9, len(origins), samples) * harmonics).sum(1))
    return (colour * (alpha * through)).sum(-1).T


for step in range(3):
    origins = torch.rand(2048, 3, device=device) - 0.5
    directions = F.normalize(torch.randn(2048, 3, device=device), dim=1)
    photo = torch.rand(2048, 3, device=device)
    loss = F.mse_loss(render(origins, directions), photo)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
