"""Fits a small NeRF for some steps, then renders a test view in chunks."""

import os
from contextlib import ExitStack

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class NeRF(nn.Module):
    def __init__(self, width=192, depth=6, bands=8):
        super().__init__()
        self.register_buffer("bands", 2.0 ** torch.arange(bands))
        layers, size = [], 3 + 6 * bands
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.ReLU()]
            size = width
        self.trunk = nn.Sequential(*layers)
        self.out = nn.Linear(width, 4)

    def forward(self, p):
        a = (p[..., None] * self.bands).flatten(-2)
        return self.out(self.trunk(torch.cat([p, a.sin(), a.cos()], -1)))


def render_rays(net, o, d, near=2.0, far=6.0, n=64):
    t = torch.linspace(near, far, n, device=o.device)
    raw = net(o[:, None] + t[:, None] * d[:, None])
    alpha = 1 - torch.exp(-F.relu(raw[..., 3]) * (far - near) / n)
    keep = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)
    return ((alpha * keep[:, :-1])[..., None] * raw[..., :3].sigmoid()).sum(1)


def camera(h, w):
    y, x = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
    d = F.normalize(torch.stack([x, -y, -torch.ones_like(x)], -1), dim=-1).view(-1, 3)
    return torch.zeros_like(d).cuda(), d.cuda()


def render_view(net, h, w, chunk=1024):
    origins, directions = camera(h, w)
    with ExitStack() as stack:
        if MENDED:
            stack.enter_context(torch.no_grad())
        rows = [
            render_rays(net, o, d) for o, d in zip(origins.split(chunk), directions.split(chunk))
        ]
        return torch.cat(rows).view(h, w, 3)


net = NeRF().cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)
for i in range(6):
    o, d = torch.zeros(1024, 3).cuda(), F.normalize(torch.randn(1024, 3), dim=1).cuda()
    loss = F.mse_loss(render_rays(net, o, d), torch.rand(1024, 3).cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
net.eval()
view = render_view(net, 160, 160)
psnr = -10 * torch.log10(F.mse_loss(view, torch.rand(160, 160, 3).cuda()))
print("view rendered", tuple(view.shape))
