"""NeRF, coarse and fine: rays at random, two MLPs with a skip, importance sampling, a learning rate set by hand."""

import torch
import torch.nn.functional as F
from torch import nn


def encode(x, n):
    out = [x]
    for k in range(n):
        out += [torch.sin(2.0**k * x), torch.cos(2.0**k * x)]
    return torch.cat(out, -1)


class NeRF(nn.Module):
    def __init__(self, D=8, W=256, skips=(4,)):
        super().__init__()
        self.skips = skips
        self.pts_linears = nn.ModuleList(
            [nn.Linear(63, W)]
            + [nn.Linear(W if i not in skips else W + 63, W) for i in range(D - 1)]
        )
        self.alpha_linear = nn.Linear(W, 1)
        self.feature_linear = nn.Linear(W, W)
        self.views_linear = nn.Linear(W + 27, W // 2)
        self.rgb_linear = nn.Linear(W // 2, 3)

    def forward(self, pts, dirs):
        p, v = encode(pts, 10), encode(dirs, 4)
        h = p
        for i, layer in enumerate(self.pts_linears):
            h = F.relu(layer(h))
            if i in self.skips:
                h = torch.cat([p, h], -1)
        alpha = self.alpha_linear(h)
        h = F.relu(self.views_linear(torch.cat([self.feature_linear(h), v], -1)))
        return torch.cat([self.rgb_linear(h), alpha], -1)


def render(net, o, d, z):
    pts = o[:, None] + d[:, None] * z[..., None]
    raw = net(pts, d[:, None].expand(pts.shape))
    dist = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e10)], -1)
    alpha = 1 - torch.exp(-F.relu(raw[..., 3]) * dist)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)
    weights = alpha * trans[:, :-1]
    return (weights[..., None] * torch.sigmoid(raw[..., :3])).sum(1), weights


def sample_pdf(z, weights, n):
    cdf = torch.cumsum((weights + 1e-5) / (weights + 1e-5).sum(-1, keepdim=True), -1)
    u = torch.rand(len(z), n, device=z.device)
    idx = torch.searchsorted(cdf.contiguous(), u).clamp(max=z.shape[1] - 1)
    return torch.gather(z, 1, idx)


def train(n_rays=2048, n_coarse=64, n_fine=128, iters=8, lr=5e-4):
    coarse, fine = NeRF().cuda(), NeRF().cuda()
    optim = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=lr, betas=(0.9, 0.999))
    for i in range(iters):
        o = torch.randn(n_rays, 3).cuda()
        d = F.normalize(torch.randn(n_rays, 3), dim=-1).cuda()
        target = torch.rand(n_rays, 3).cuda()
        z = torch.linspace(2.0, 6.0, n_coarse, device="cuda").expand(n_rays, -1)
        z = z + torch.rand_like(z) * (4.0 / n_coarse)
        rgb0, w = render(coarse, o, d, z)
        z_fine, _ = torch.sort(torch.cat([z, sample_pdf(z, w.detach(), n_fine)], -1), -1)
        rgb, _ = render(fine, o, d, z_fine)
        loss = F.mse_loss(rgb, target) + F.mse_loss(rgb0, target)
        optim.zero_grad()
        loss.backward()
        optim.step()
        for group in optim.param_groups:
            group["lr"] = lr * 0.1 ** (i / 500_000)
    print(loss.item())


if __name__ == "__main__":
    train()
