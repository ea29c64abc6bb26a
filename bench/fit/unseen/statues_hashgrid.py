"""Radiance field on a hash grid: sixteen levels of learned features, a small MLP, rays rendered in one go, Adam on it all."""

import torch
import torch.nn.functional as F
from torch import nn

PRIMES = (1, 2654435761, 805459861)


class HashGrid(nn.Module):
    def __init__(self, levels=16, size=2**20, features=4, coarse=16, fine=1024):
        super().__init__()
        growth = (fine / coarse) ** (1 / (levels - 1))
        self.resolution = [int(coarse * growth**k) for k in range(levels)]
        self.size = size
        self.tables = nn.ModuleList(nn.Embedding(size, features) for _ in range(levels))
        for t in self.tables:
            nn.init.uniform_(t.weight, -1e-4, 1e-4)
        corners = torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)])
        self.register_buffer("corners", corners)

    def forward(self, x):
        out = []
        for res, table in zip(self.resolution, self.tables):
            p = x * res
            base = p.floor()
            frac = (p - base)[:, None]
            cell = base.long()[:, None] + self.corners
            key = cell[..., 0] * PRIMES[0] ^ cell[..., 1] * PRIMES[1] ^ cell[..., 2] * PRIMES[2]
            weight = torch.where(self.corners.bool(), frac, 1 - frac).prod(-1, keepdim=True)
            out.append((table(key % self.size) * weight).sum(1))
        return torch.cat(out, -1)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.grid = HashGrid()
        self.density = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
        self.color = nn.Sequential(
            nn.Linear(16 + 9, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
        )

    def forward(self, x, d):
        h = self.density(self.grid(x))
        sh = torch.cat([d, d * d, d * d.roll(1, -1)], -1)
        return F.softplus(h[:, 0]), torch.sigmoid(self.color(torch.cat([h, sh], -1)))


def render(field, origin, direction, samples):
    t = torch.linspace(0.05, 1.7, samples, device=origin.device)
    t = t + torch.rand(len(origin), samples, device=origin.device) * 1.6 / samples
    points = (origin[:, None] + direction[:, None] * t[..., None]).clamp(0, 0.999)
    views = direction[:, None].expand_as(points)
    sigma, rgb = field(points.reshape(-1, 3), views.reshape(-1, 3))
    sigma, rgb = sigma.view(t.shape), rgb.view(*t.shape, 3)
    optical = sigma * 1.6 / samples
    alive = torch.exp(-torch.cumsum(optical, -1) + optical)
    weight = alive * (1 - torch.exp(-optical))
    return (weight[..., None] * rgb).sum(1) + 1 - weight.sum(1, keepdim=True)


def main(rays=2048, samples=64, steps=6):
    torch.manual_seed(0)
    field = Field().cuda()
    optimizer = torch.optim.Adam(
        [
            {"params": field.grid.parameters(), "lr": 1e-2},
            {"params": [*field.density.parameters(), *field.color.parameters()], "lr": 1e-3},
        ],
        eps=1e-15,
    )
    for step in range(steps):
        origin = torch.rand(rays, 3, device="cuda")
        direction = F.normalize(torch.randn(rays, 3, device="cuda"), dim=-1)
        target = torch.rand(rays, 3, device="cuda")
        loss = F.smooth_l1_loss(render(field, origin, direction, samples), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
