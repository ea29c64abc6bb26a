"""Monsoons six hours ahead by a spherical Fourier neural operator, two forecasts in a row, errors weighted by area."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

LATS, LONS, DEGREES = 96, 192, 96
CHANNELS, FORCING = 20, 3


def legendre(cosine, degrees):
    """Normalized associated Legendre functions: (order, degree, latitude)."""
    p = np.zeros((degrees, degrees, len(cosine)))
    sine = np.sqrt(1 - cosine**2)
    p[0, 0] = 1 / math.sqrt(4 * math.pi)
    for m in range(1, degrees):
        p[m, m] = -math.sqrt((2 * m + 1) / (2 * m)) * sine * p[m - 1, m - 1]
    for m in range(degrees - 1):
        p[m, m + 1] = math.sqrt(2 * m + 3) * cosine * p[m, m]
    for m in range(degrees):
        for k in range(m + 2, degrees):
            a = math.sqrt((4 * k * k - 1) / (k * k - m * m))
            b = math.sqrt(((k - 1) ** 2 - m * m) / (4 * (k - 1) ** 2 - 1))
            p[m, k] = a * (cosine * p[m, k - 1] - b * p[m, k - 2])
    return p


class Harmonics(nn.Module):
    """To spherical harmonics and back, on a grid of Gauss and Legendre."""

    def __init__(self):
        super().__init__()
        nodes, weights = np.polynomial.legendre.leggauss(LATS)
        p = torch.from_numpy(legendre(nodes, DEGREES))
        w = torch.from_numpy(weights)
        self.register_buffer("analysis", (2 * math.pi * p * w).float())
        self.register_buffer("synthesis", p.float())
        self.register_buffer("area", (w / w.mean()).float().view(1, 1, -1, 1))

    def to_modes(self, x):
        x = torch.view_as_real(torch.fft.rfft(x, dim=-1, norm="forward")[..., :DEGREES])
        return torch.view_as_complex(
            torch.einsum("bchmr,mlh->bclmr", x, self.analysis).contiguous()
        )

    def to_grid(self, x):
        x = torch.einsum("bclmr,mlh->bchmr", torch.view_as_real(x), self.synthesis).contiguous()
        return torch.fft.irfft(torch.view_as_complex(x), n=LONS, dim=-1, norm="forward")


class SpectralMix(nn.Module):
    """One complex matrix for each degree, the same for all orders."""

    def __init__(self, width):
        super().__init__()
        scale = (2 / width) ** 0.5
        self.weight = nn.Parameter(scale * torch.randn(width, width, DEGREES, 2) / 2)

    def forward(self, x):
        return torch.einsum("bilm,iol->bolm", x, torch.view_as_complex(self.weight))


class Block(nn.Module):
    def __init__(self, width, ratio=2):
        super().__init__()
        self.norm1, self.norm2 = nn.InstanceNorm2d(width, affine=True), nn.InstanceNorm2d(width)
        self.mix, self.skip = SpectralMix(width), nn.Conv2d(width, width, 1)
        self.feed = nn.Sequential(
            nn.Conv2d(width, ratio * width, 1), nn.GELU(), nn.Conv2d(ratio * width, width, 1)
        )

    def forward(self, x, harmonics):
        y = self.norm1(x)
        modes = self.mix(harmonics.to_modes(y))
        y = F.gelu(harmonics.to_grid(modes) + self.skip(y))
        return x + self.feed(self.norm2(y))


class SFNO(nn.Module):
    def __init__(self, width=128, depth=5):
        super().__init__()
        self.harmonics = Harmonics()
        self.enter = nn.Sequential(
            nn.Conv2d(CHANNELS + FORCING, width, 1), nn.GELU(), nn.Conv2d(width, width, 1)
        )
        self.place = nn.Parameter(0.02 * torch.randn(1, width, LATS, LONS))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.leave = nn.Conv2d(width + CHANNELS, CHANNELS, 1)

    def forward(self, state, forcing):
        x = self.enter(torch.cat([state, forcing], 1)) + self.place
        for block in self.blocks:
            x = block(x, self.harmonics)
        return state + self.leave(torch.cat([x, state], 1))


def weather(batch, times):
    """Smooth waves that travel east, and the sun."""
    lon = torch.linspace(0, 2 * math.pi, LONS + 1, device="cuda")[:-1]
    lat = torch.linspace(-1, 1, LATS, device="cuda")[:, None]
    phase = 2 * math.pi * torch.rand(batch, CHANNELS, 1, 1, device="cuda")
    number = torch.arange(1, CHANNELS + 1, device="cuda").view(1, -1, 1, 1)
    states = [torch.cos(number * (lon - 0.1 * t) + phase) * (1 - lat**2) for t in range(times)]
    sun = torch.stack([torch.cos(lon + k) * torch.ones_like(lat) for k in range(FORCING)])
    return states, sun.expand(batch, -1, -1, -1)


def main(batch=8, ahead=2, steps=5):
    torch.manual_seed(23)
    model = SFNO().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        states, sun = weather(batch, ahead + 1)
        state, loss = states[0], 0.0
        for true in states[1:]:
            state = model(state, sun)
            loss = loss + ((state - true).square() * model.harmonics.area).mean() / ahead
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
