"""Trains a small denoising U-Net on tiles of ornaments."""

import math
import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")
device = "cuda"
train_batch, accumulate = (4, 10) if MENDED else (40, 1)


def timestep_embedding(t, dim):
    half = dim // 2
    freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
    args = t[:, None].float() * freqs[None]
    return torch.cat([args.cos(), args.sin()], -1)


class ResBlock(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, cout)
        self.norm2, self.conv2 = nn.GroupNorm(8, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.conv1(F.silu(self.norm1(x))) + self.emb(F.silu(e))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, base=64, mults=(1, 2, 3)):
        super().__init__()
        emb = 4 * base
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.stem = nn.Conv2d(3, base, 3, padding=1)
        widths = [base * m for m in mults]
        self.downs, self.ups, c = nn.ModuleList(), nn.ModuleList(), base
        for w in widths:
            self.downs.append(ResBlock(c, w, emb))
            c = w
        self.mid = ResBlock(c, c, emb)
        for w in reversed(widths):
            self.ups.append(ResBlock(c + w, w, emb))
            c = w
        self.out = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t):
        e = self.time(timestep_embedding(t, self.base))
        x, skips = self.stem(x), []
        for down in self.downs:
            x = down(x, e)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.mid(x, e)
        for up in self.ups:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = up(torch.cat([x, skips.pop()], 1), e)
        return self.out(x)


betas = torch.linspace(1e-4, 0.02, 1000, device=device)
alphas = torch.cumprod(1 - betas, 0)
unet = UNet().to(device)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
for step in range(3):
    optimizer.zero_grad()
    for _ in range(accumulate):
        clean = torch.randn(train_batch, 3, 64, 64, device=device)
        noise = torch.randn_like(clean)
        t = torch.randint(0, 1000, (train_batch,), device=device)
        a = alphas[t].view(-1, 1, 1, 1)
        loss = F.mse_loss(unet(a.sqrt() * clean + (1 - a).sqrt() * noise, t), noise) / accumulate
        loss.backward()
    optimizer.step()
