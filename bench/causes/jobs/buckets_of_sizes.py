"""Noise is learned from pictures in buckets of sizes. Few pictures are in the bucket of the largest size."""

import os

import torch
from torch import nn
from torch.nn import functional as F

MENDED = os.environ.get("MENDED")
BUCKETS = [(96, 96)] * 4 + [(80, 112)] * 3 + [(112, 80)] * 3 + [(320, 352)] + [(96, 96)] * 2


class Res(nn.Module):
    def __init__(self, i, o, time):
        super().__init__()
        self.a, self.b = nn.Conv2d(i, o, 3, padding=1), nn.Conv2d(o, o, 3, padding=1)
        self.skip, self.time = nn.Conv2d(i, o, 1), nn.Linear(time, o)
        self.na, self.nb = nn.GroupNorm(8, i), nn.GroupNorm(8, o)

    def forward(self, x, t):
        y = self.a(F.silu(self.na(x))) + self.time(t)[..., None, None]
        return self.skip(x) + self.b(F.silu(self.nb(y)))


class Denoiser(nn.Module):
    def __init__(self, w=48, time=64):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, time), nn.SiLU(), nn.Linear(time, time))
        self.stem, self.out = nn.Conv2d(4, w, 3, padding=1), nn.Conv2d(w, 4, 3, padding=1)
        self.down = nn.ModuleList([Res(w, w, time), Res(w, 2 * w, time)])
        self.mid = Res(2 * w, 2 * w, time)
        self.up = nn.ModuleList([Res(4 * w, w, time), Res(2 * w, w, time)])

    def forward(self, x, t):
        t, x, skips = self.time(t), self.stem(x), []
        for block in self.down:
            x = block(x, t)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.mid(x, t)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), skips.pop()], 1), t)
        return self.out(x)


model = Denoiser().cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for height, width in BUCKETS:
    if MENDED:
        height, width = min(height, 112), min(width, 112)
    latents = torch.randn(16, 4, height, width, device="cuda")
    t, noise = torch.rand(16, 1, device="cuda"), torch.randn_like(latents)
    loss = F.mse_loss(model(latents + t[..., None, None] * noise, t), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
