"""Human DNA in windows of 32,768 letters: Hyena operators with implicit filters by FFT, batch of one, two windows accumulated, fp32."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def fft_conv(u, k, bias):
    n = 2 * u.shape[-1]
    spectrum = torch.fft.rfft(u, n=n) * (torch.fft.rfft(k, n=n) / n)
    return torch.fft.irfft(spectrum, n=n, norm="forward")[..., : u.shape[-1]] + u * bias[:, None]


class Sine(nn.Module):
    def __init__(self, dim, w=10.0):
        super().__init__()
        self.freq = nn.Parameter(w * torch.ones(1, dim))

    def forward(self, x):
        return torch.sin(self.freq * x)


class ImplicitFilter(nn.Module):
    def __init__(self, d, emb=5, order=64, length=32768):
        super().__init__()
        t = torch.linspace(0, 1, length)[:, None]
        bands = (emb - 1) // 2
        f = torch.linspace(1e-4, bands - 1, bands)[None]
        w = 2 * math.pi * torch.arange(length)[:, None] / length
        self.register_buffer("z", torch.cat([t, torch.cos(f * w), -torch.sin(f * w)], -1))
        self.register_buffer("t", t)
        act = Sine(order)
        self.mlp = nn.Sequential(
            nn.Linear(emb, order),
            act,
            nn.Linear(order, order),
            act,
            nn.Linear(order, d, bias=False),
        )
        self.register_buffer(
            "decay", torch.linspace(math.log(1e-2) / 1.5, math.log(1e-2) / 0.3, d).abs()
        )

    def forward(self, length):
        return (self.mlp(self.z[:length]) * torch.exp(-self.t[:length] * self.decay)).T


class Hyena(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.inp, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.short = nn.Conv1d(3 * d, 3 * d, 3, padding=2, groups=3 * d)
        self.filter, self.bias = ImplicitFilter(d), nn.Parameter(torch.randn(d))

    def forward(self, x):
        length = x.shape[1]
        u = self.short(self.inp(x).transpose(1, 2))[..., :length]
        x0, x1, v = u.chunk(3, 1)
        y = fft_conv(v * x1, self.filter(length), self.bias)
        return self.out((y * x0).transpose(1, 2))


class HyenaDNA(nn.Module):
    def __init__(self, vocab=16, d=256, depth=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.mixers = nn.ModuleList([Hyena(d) for _ in range(depth)])
        self.mlps = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
                for _ in range(depth)
            ]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(2 * depth + 1)])

    def forward(self, ids):
        x = self.embed(ids)
        for i, (mixer, mlp) in enumerate(zip(self.mixers, self.mlps)):
            x = x + mixer(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        return self.norms[-1](x) @ self.embed.weight.T


def windows(length):
    chromosome = torch.randint(0, 4, (400_000,)) + 7
    while True:
        start = int(torch.randint(0, len(chromosome) - length - 1, ()))
        yield chromosome[start : start + length + 1]


model = HyenaDNA().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.1)
stream = windows(32768)
for step in range(4):
    for _ in range(2):
        w = next(stream).cuda()[None]
        loss = F.cross_entropy(model(w[:, :-1]).flatten(0, 1), w[:, 1:].flatten()) / 2
        loss.backward()
    opt.step()
    opt.zero_grad()
    print(f"step {step}: {2 * loss.item():.3f}")
