"""NeRF: rays are sampled coarsely and then finely, and composed to colours."""

import torch
import torch.nn.functional as F


def encode(x, bands):
    out = [x]
    for k in range(bands):
        out += [torch.sin(2.0**k * torch.pi * x), torch.cos(2.0**k * torch.pi * x)]
    return torch.cat(out, -1)


class NeRF(torch.nn.Module):
    def __init__(self, depth=8, width=256, skip=4):
        super().__init__()
        self.skip = skip
        xyz, view = 3 + 3 * 2 * 10, 3 + 3 * 2 * 4
        self.pts = torch.nn.ModuleList(
            [
                torch.nn.Linear(xyz if k == 0 else (width + xyz if k == skip + 1 else width), width)
                for k in range(depth)
            ]
        )
        self.feature = torch.nn.Linear(width, width)
        self.sigma = torch.nn.Linear(width, 1)
        self.view = torch.nn.Linear(width + view, width // 2)
        self.rgb = torch.nn.Linear(width // 2, 3)

    def forward(self, pts, dirs):
        p = encode(pts, 10)
        h = p
        for k, layer in enumerate(self.pts):
            h = F.relu(layer(h))
            if k == self.skip:
                h = torch.cat([p, h], -1)
        sigma = F.relu(self.sigma(h)).squeeze(-1)
        h = torch.cat([self.feature(h), encode(dirs, 4)], -1)
        return torch.sigmoid(self.rgb(F.relu(self.view(h)))), sigma


def composite(rgb, sigma, t):
    delta = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e10)], -1)
    alpha = 1 - torch.exp(-sigma * delta)
    trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)
    weights = alpha * trans[:, :-1]
    return (weights[..., None] * rgb).sum(1), weights


def sample_pdf(mids, weights, n):
    pdf = (weights + 1e-5) / (weights + 1e-5).sum(-1, keepdim=True)
    cdf = torch.cat([torch.zeros_like(pdf[:, :1]), pdf.cumsum(-1)], -1)
    u = torch.rand(len(cdf), n, device=cdf.device)
    idx = torch.searchsorted(cdf.contiguous(), u, right=True)
    low = (idx - 1).clamp(0, mids.shape[1] - 1)
    high = idx.clamp(0, mids.shape[1] - 1)
    a, b = mids.gather(1, low), mids.gather(1, high)
    return a + (b - a) * torch.rand_like(a)


def render(coarse, fine, origins, dirs, n_coarse=64, n_fine=64, near=2.0, far=6.0):
    n = len(origins)
    t = torch.linspace(near, far, n_coarse, device=origins.device).expand(n, n_coarse)
    t = t + torch.rand_like(t) * (far - near) / n_coarse
    pts = origins[:, None] + dirs[:, None] * t[..., None]
    rgb, sigma = coarse(pts, dirs[:, None].expand_as(pts))
    first, weights = composite(rgb, sigma, t)
    mids = 0.5 * (t[:, 1:] + t[:, :-1])
    extra = sample_pdf(mids, weights[:, 1:-1].detach(), n_fine)
    t, _ = torch.sort(torch.cat([t, extra], -1), -1)
    pts = origins[:, None] + dirs[:, None] * t[..., None]
    rgb, sigma = fine(pts, dirs[:, None].expand_as(pts))
    second, _ = composite(rgb, sigma, t)
    return first, second


def main():
    coarse, fine = NeRF().cuda(), NeRF().cuda()
    params = [*coarse.parameters(), *fine.parameters()]
    opt = torch.optim.Adam(params, lr=5e-4, betas=(0.9, 0.999))
    all_rays = F.normalize(torch.randn(100_000, 3), dim=-1)
    colours = torch.rand(100_000, 3)
    for i in range(5):
        pick = torch.randperm(100_000)[:1024]
        dirs, target = all_rays[pick].cuda(), colours[pick].cuda()
        origins = torch.zeros_like(dirs)
        first, second = render(coarse, fine, origins, dirs)
        loss = F.mse_loss(first, target) + F.mse_loss(second, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for group in opt.param_groups:
            group["lr"] = 5e-4 * 0.1 ** (i / 250_000)
        print("iter", i, "loss", loss.item())


main()
