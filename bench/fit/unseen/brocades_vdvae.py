"""Patterns of brocade by a very deep VAE: a ladder of stochastic blocks from 1x1 up to 64x64.

As in "Very deep VAEs": bottleneck residual blocks, Gaussian posteriors at each block of the way down,
a mixture of discretized logistics for the pixels, steps skipped when the gradient's norm is too
large, EMA of the weights. Plain fp32.
"""

import copy
import math
import os

import torch
import torch.nn.functional as F
from torch import nn

STEPS = int(os.environ.get("JOB_STEPS", "5"))
WIDTH, MIDDLE, ZDIM, MIX = 256, 64, 16, 10
ENCODER = {64: 6, 32: 8, 16: 5, 8: 4, 4: 3, 1: 2}
DECODER = {1: 1, 4: 3, 8: 4, 16: 6, 32: 9, 64: 7}


class Bottleneck(nn.Module):
    def __init__(self, inp, out, residual=False, k=3):
        super().__init__()
        self.residual = residual
        self.c1 = nn.Conv2d(inp, MIDDLE, 1)
        self.c2 = nn.Conv2d(MIDDLE, MIDDLE, k, padding=k // 2)
        self.c3 = nn.Conv2d(MIDDLE, MIDDLE, k, padding=k // 2)
        self.c4 = nn.Conv2d(MIDDLE, out, 1)
        nn.init.zeros_(self.c4.bias)

    def forward(self, x):
        h = self.c1(F.gelu(x))
        h = self.c2(F.gelu(h))
        h = self.c3(F.gelu(h))
        h = self.c4(F.gelu(h))
        return x + h if self.residual else h


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.stages = nn.ModuleDict(
            {
                str(res): nn.Sequential(
                    *[Bottleneck(WIDTH, WIDTH, True, 3 if res > 2 else 1) for _ in range(n)]
                )
                for res, n in ENCODER.items()
            }
        )

    def forward(self, x):
        x, acts = self.stem(x), {}
        for res, stage in self.stages.items():
            if x.shape[-1] != int(res):
                x = F.avg_pool2d(x, x.shape[-1] // int(res))
            x = stage(x)
            acts[int(res)] = x
        return acts


class TopDown(nn.Module):
    def __init__(self, res, total):
        super().__init__()
        k = 3 if res > 2 else 1
        self.posterior = Bottleneck(2 * WIDTH, 2 * ZDIM, k=k)
        self.prior = Bottleneck(WIDTH, 2 * ZDIM + WIDTH, k=k)
        self.inject = nn.Conv2d(ZDIM, WIDTH, 1)
        self.after = Bottleneck(WIDTH, WIDTH, True, k=k)
        self.inject.weight.data *= math.sqrt(1 / total)

    def forward(self, x, seen):
        qm, qv = self.posterior(torch.cat([x, seen], 1)).chunk(2, 1)
        pm, pv, more = self.prior(x).split([ZDIM, ZDIM, WIDTH], 1)
        z = qm + qv.exp() * torch.randn_like(qm)
        kl = -0.5 + pv - qv + 0.5 * (torch.exp(2 * qv) + (qm - pm) ** 2) * torch.exp(-2 * pv)
        x = x + more + self.inject(z)
        return self.after(x), kl.sum((1, 2, 3))


class VDVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        total = sum(DECODER.values())
        self.start = nn.Parameter(torch.zeros(1, WIDTH, 1, 1))
        self.blocks = nn.ModuleList(TopDown(r, total) for r, n in DECODER.items() for _ in range(n))
        self.resolutions = [r for r, n in DECODER.items() for _ in range(n)]
        self.out = nn.Conv2d(WIDTH, MIX * 7, 1)

    def forward(self, pixels):
        acts = self.encoder(pixels)
        x, kl = self.start.expand(len(pixels), -1, -1, -1), 0.0
        for res, block in zip(self.resolutions, self.blocks):
            if x.shape[-1] != res:
                x = F.interpolate(x, scale_factor=res // x.shape[-1], mode="nearest")
            x, k = block(x, acts[res])
            kl = kl + k
        return self.logistic(pixels, self.out(x)), kl

    def logistic(self, pixels, out):
        logit, mean, scale = out.split([MIX, 3 * MIX, 3 * MIX], 1)
        b, _, h, w = pixels.shape
        mean, scale = mean.view(b, MIX, 3, h, w), scale.view(b, MIX, 3, h, w).clamp(min=-7)
        away = pixels[:, None] - mean
        high = torch.sigmoid(torch.exp(-scale) * (away + 1 / 255))
        low = torch.sigmoid(torch.exp(-scale) * (away - 1 / 255))
        log_p = torch.log((high - low).clamp(min=1e-12)).sum(2) + F.log_softmax(logit, 1)
        return -torch.logsumexp(log_p, 1).sum((1, 2))


def brocade(n):
    tile = torch.rand(n, 3, 16, 16)
    return (torch.cat([tile, tile.flip(-1)], -1).repeat(1, 1, 4, 2) * 255).round() / 127.5 - 1


torch.manual_seed(8)
model = VDVAE().cuda()
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.9), weight_decay=0.01)
warmup = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 100))
dims, skipped = 3 * 64 * 64 * math.log(2), 0
for it in range(STEPS):
    x = brocade(24).cuda()
    distortion, rate = model(x)
    elbo = (distortion + rate).mean() / dims
    opt.zero_grad()
    elbo.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 200.0).item()
    if norm < 1e9:
        opt.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters()):
                e.mul_(0.9999).add_(p, alpha=1e-4)
    else:
        skipped += 1
    warmup.step()
    print(f"it {it} bits/dim {elbo.item():.3f} rate {rate.mean().item() / dims:.3f} skip {skipped}")
