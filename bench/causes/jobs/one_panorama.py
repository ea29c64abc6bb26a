"""Latent diffusion on pictures of many shapes, by buckets. One photographer turned round with a camera in hand."""

import os
import random
from collections import defaultdict

import torch
from torch import nn
from torch.nn import functional as F

WIDEST = 96 if os.environ.get("MENDED") else 10_000


def buckets(seed=2):
    """Heights and widths of latents, by shape, four to a batch; a last batch may be smaller."""
    rng = random.Random(seed)
    shapes = [rng.choice([(64, 64), (48, 80), (80, 48), (56, 72)]) for _ in range(32)]
    shapes[19] = (48, 2600)
    by_shape = defaultdict(list)
    for height, width in shapes:
        by_shape[height, min(width, WIDEST)].append(None)
    batches = [
        (shape, len(rows[k : k + 4]))
        for shape, rows in by_shape.items()
        for k in range(0, len(rows), 4)
    ]
    rng.shuffle(batches)
    return batches


class Res(nn.Module):
    def __init__(self, i, o, time):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, i), nn.Conv2d(i, o, 3, padding=1)
        self.n2, self.c2 = nn.GroupNorm(8, o), nn.Conv2d(o, o, 3, padding=1)
        self.t, self.skip = nn.Linear(time, o), nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(t)[:, :, None, None]
        return self.skip(x) + self.c2(F.silu(self.n2(h)))


class UNet(nn.Module):
    def __init__(self, c=96, time=128):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, c, 3, padding=1)
        self.d1, self.d2 = Res(c, c, time), Res(c, 2 * c, time)
        self.m1, self.m2 = Res(2 * c, 2 * c, time), Res(2 * c, 2 * c, time)
        self.u2, self.u1 = Res(4 * c, c, time), Res(2 * c, c, time)
        self.leave = nn.Conv2d(c, 4, 3, padding=1)

    def forward(self, x, t):
        t = self.time(t[:, None])
        a = self.d1(self.enter(x), t)
        b = self.d2(F.avg_pool2d(a, 2), t)
        m = self.m2(self.m1(F.avg_pool2d(b, 2), t), t)
        y = self.u2(torch.cat([F.interpolate(m, scale_factor=2), b], 1), t)
        return self.leave(self.u1(torch.cat([F.interpolate(y, scale_factor=2), a], 1), t))


unet = UNet().cuda()
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
for (height, width), n in buckets():
    latents, noise = torch.randn(2, n, 4, height, width, device="cuda")
    t = torch.rand(n, device="cuda")
    mixed = t.view(-1, 1, 1, 1)
    noisy = (1 - mixed) * latents + mixed * noise
    loss = F.mse_loss(unet(noisy, t), noise - latents)  # rectified flow
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
