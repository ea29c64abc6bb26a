"""Gardens by TensoRF: density and colour as planes and lines, a small MLP for directions, total variation, two learning rates, all samples kept."""

import torch
import torch.nn as nn
import torch.nn.functional as F

PLANES, LINES = ((0, 1), (0, 2), (1, 2)), (2, 1, 0)


class VectorMatrix(nn.Module):
    def __init__(self, components, grid):
        super().__init__()
        self.planes = nn.ParameterList(
            [
                nn.Parameter(0.1 * torch.randn(1, components, grid, grid, device="cuda"))
                for _ in range(3)
            ]
        )
        self.lines = nn.ParameterList(
            [
                nn.Parameter(0.1 * torch.randn(1, components, grid, 1, device="cuda"))
                for _ in range(3)
            ]
        )

    def forward(self, x):
        """x: N x 3 in [-1, 1] -> N x 3 components"""
        out = []
        for plane, line, axes, axis in zip(self.planes, self.lines, PLANES, LINES):
            p = F.grid_sample(plane, x[None, :, None, list(axes)], align_corners=True)
            along = torch.stack([torch.zeros_like(x[:, axis]), x[:, axis]], -1)
            l = F.grid_sample(line, along[None, :, None], align_corners=True)
            out.append((p * l)[0, :, :, 0].T)
        return torch.cat(out, -1)

    def variation(self):
        return sum(
            p.diff(dim=2).square().mean() + p.diff(dim=3).square().mean() for p in self.planes
        )


class TensoRF(nn.Module):
    def __init__(self, grid=300):
        super().__init__()
        self.density, self.appearance = VectorMatrix(16, grid), VectorMatrix(48, grid)
        self.basis = nn.Linear(144, 27, bias=False)
        self.colour = nn.Sequential(
            nn.Linear(27 + 27 * 4 + 3 + 12, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, 3),
        )

    @staticmethod
    def encode(x, n=2):
        scaled = torch.cat([x * 2**i for i in range(n)], -1)
        return torch.cat([x, scaled.sin(), scaled.cos()], -1)

    def forward(self, origins, directions, near=0.5, far=4.0, samples=192):
        n = len(origins)
        z = torch.linspace(near, far, samples, device=origins.device).expand(n, samples)
        z = z + torch.rand_like(z) * (far - near) / samples
        x = (origins[:, None] + z[..., None] * directions[:, None]).flatten(0, 1) / far
        sigma = F.softplus(self.density(x).sum(-1) - 10).view(n, samples)
        gap = torch.cat([z.diff(dim=-1), torch.full_like(z[:, :1], 1e10)], -1)
        alpha = 1 - torch.exp(-sigma * gap * 25)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)
        weight = alpha * clear[:, :-1]
        feature = self.basis(self.appearance(x))
        view = directions[:, None].expand(-1, samples, -1).flatten(0, 1)
        rgb = torch.sigmoid(self.colour(torch.cat([self.encode(feature), self.encode(view)], -1)))
        picture = (weight[..., None] * rgb.view(n, samples, 3)).sum(1)
        return picture + (1 - weight.sum(-1, keepdim=True))


model = TensoRF().cuda()
grids = [*model.density.parameters(), *model.appearance.parameters()]
nets = [*model.basis.parameters(), *model.colour.parameters()]
optimizer = torch.optim.Adam(
    [{"params": grids, "lr": 0.02}, {"params": nets, "lr": 1e-3}], betas=(0.9, 0.99)
)
rays = torch.randn(100_000, 6)
colours = torch.rand(100_000, 3)
for iteration in range(5):
    chosen = torch.randint(0, len(rays), (3072,))
    o, d = rays[chosen].cuda().chunk(2, -1)
    picture = model(o, F.normalize(d, dim=-1))
    mse = (picture - colours[chosen].cuda()).square().mean()
    loss = mse + 0.1 * model.density.variation() + 0.01 * model.appearance.variation()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] *= 0.1 ** (1 / 30000)
    print(f"{iteration}: {mse.item():.5f}")
