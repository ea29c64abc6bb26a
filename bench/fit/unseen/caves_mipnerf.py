"""Caves by mip-NeRF: cones instead of rays, one network for both levels, integrated positional encoding."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def integrated_encoding(mean, var, degree=12):
    scales = 2.0 ** torch.arange(degree, device=mean.device)
    y = (mean[..., None, :] * scales[:, None]).flatten(-2)
    v = (var[..., None, :] * scales[:, None] ** 2).flatten(-2)
    damp = torch.exp(-0.5 * v)
    return torch.cat([damp * torch.sin(y), damp * torch.cos(y)], -1)


def cone_gaussians(origins, directions, t, radius=2e-3):
    t0, t1 = t[:, :-1], t[:, 1:]
    mid, half = (t0 + t1) / 2, (t1 - t0) / 2
    t_mean = mid + 2 * mid * half**2 / (3 * mid**2 + half**2)
    t_var = half**2 / 3
    r_var = radius**2 * (mid**2 / 4 + 5 / 12 * half**2)
    d2 = directions**2
    mean = origins[:, None] + directions[:, None] * t_mean[..., None]
    var = t_var[..., None] * d2[:, None] + r_var[..., None] * (1 - d2[:, None])
    return mean, var


class MipMLP(nn.Module):
    def __init__(self, depth=8, width=256, skip=4):
        super().__init__()
        self.skip = skip
        dims = [72] + [width] * depth
        self.layers = nn.ModuleList(
            nn.Linear(dims[i] + (72 if i == skip else 0), width) for i in range(depth)
        )
        self.density = nn.Linear(width, 1)
        self.bottleneck = nn.Linear(width, width)
        self.color = nn.Sequential(nn.Linear(width + 27, 128), nn.ReLU(), nn.Linear(128, 3))

    def forward(self, enc, viewdirs):
        h = enc
        for i, layer in enumerate(self.layers):
            if i == self.skip:
                h = torch.cat([h, enc], -1)
            h = torch.relu(layer(h))
        density = F.softplus(self.density(h) - 1)
        v = viewdirs[:, None].expand(-1, enc.shape[1], -1)
        return density[..., 0], torch.sigmoid(self.color(torch.cat([self.bottleneck(h), v], -1)))


def view_encoding(d):
    parts = [d]
    for k in range(4):
        parts += [torch.sin(2**k * d), torch.cos(2**k * d)]
    return torch.cat(parts, -1)


def composite(density, rgb, t):
    alpha = 1 - torch.exp(-density * (t[:, 1:] - t[:, :-1]))
    trans = torch.cumprod(1 - alpha + 1e-10, -1)
    weights = alpha * torch.cat([torch.ones_like(trans[:, :1]), trans[:, :-1]], -1)
    return (weights[..., None] * rgb).sum(1), weights


def resample(t, weights, n):
    w = F.max_pool1d(F.pad(weights[:, None], (1, 1)), 2, 1)[:, 0]
    w = 0.5 * (w[:, :-1] + w[:, 1:]) + 0.01
    cdf = F.pad(torch.cumsum(w / w.sum(-1, keepdim=True), -1), (1, 0))
    u = torch.linspace(0, 1 - 1e-5, n, device=t.device).expand(len(t), n).contiguous()
    above = torch.searchsorted(cdf.contiguous(), u, right=True).clamp(1, t.shape[1] - 1)
    return torch.gather(t, 1, above - 1).sort(-1).values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rays", type=int, default=2048)
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--steps", type=int, default=8)
    opts = parser.parse_args()
    model = MipMLP().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    for step in range(opts.steps):
        origins = torch.rand(opts.rays, 3, device="cuda")
        directions = F.normalize(torch.randn(opts.rays, 3, device="cuda"), dim=-1)
        truth = torch.rand(opts.rays, 3, device="cuda")
        views = view_encoding(directions)
        t = torch.linspace(2, 6, opts.samples + 1, device="cuda").expand(opts.rays, -1)
        loss = 0
        for level, weight in ((0, 0.1), (1, 1.0)):
            if level:
                t = resample(t, weights.detach(), opts.samples + 1)  # noqa: F821
            density, rgb = model(
                integrated_encoding(*cone_gaussians(origins, directions, t)), views
            )
            colors, weights = composite(density, rgb, t)
            loss = loss + weight * F.mse_loss(colors, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2 == 0:
            print(f"{step:4d} psnr {-10 * torch.log10(loss).item():.2f} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
