"""A volume from its projections: a dense grid of features and a small network, L-BFGS with a closure."""

import math

import torch
import torch.nn.functional as F


class Volume(torch.nn.Module):
    """A dense grid of features that a small network turns into density."""

    def __init__(self, size=160, channels=8, hidden=64):
        super().__init__()
        self.grid = torch.nn.Parameter(torch.randn(1, channels, size, size, size) * 0.01)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(channels, hidden),
            torch.nn.SiLU(),
            torch.nn.Linear(hidden, 1),
            torch.nn.Softplus(),
        )

    def forward(self, points):
        f = F.grid_sample(self.grid, points[None, :, :, None], align_corners=True)
        return self.net(f[0, :, :, :, 0].permute(1, 2, 0)).squeeze(-1)


def rays(n_views, n_det, n_samples, device):
    angle = torch.linspace(0, math.pi, n_views, device=device)
    s = torch.linspace(-1, 1, n_samples, device=device)
    det = torch.linspace(-0.9, 0.9, n_det, device=device)
    x = det[None, :, None] * angle.cos()[:, None, None] - s * angle.sin()[:, None, None]
    y = det[None, :, None] * angle.sin()[:, None, None] + s * angle.cos()[:, None, None]
    z = torch.rand(n_views, n_det, 1, device=device).expand_as(x) * 1.8 - 0.9
    return torch.stack([x, y, z], -1).flatten(0, 1)


def total_variation(g):
    return sum(
        (g.narrow(d, 1, g.shape[d] - 1) - g.narrow(d, 0, g.shape[d] - 1)).abs().mean()
        for d in (2, 3, 4)
    )


torch.manual_seed(0)
device = "cuda"
model = Volume().to(device)
points = rays(48, 128, 192, device)
measured = torch.rand(len(points), device=device)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3, history_size=8)


def closure():
    optimizer.zero_grad()
    projections = model(points).mean(1)
    loss = F.mse_loss(projections, measured) + 1e-3 * total_variation(model.grid)
    loss.backward()
    return loss


for step in range(6):
    value = optimizer.step(closure)
    print(f"step {step} objective {float(value):.6f}")
