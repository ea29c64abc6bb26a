"""Vibrations of pumps through a wide autoencoder: what it cannot copy is wear. RMSprop is centred and has momentum, which is three numbers for each weight."""

import os
import sys

import torch
from torch import nn


def settings():
    if os.environ.get("MENDED"):
        return torch.optim.SGD, dict(lr=1e-3)
    return torch.optim.RMSprop, dict(lr=1e-4, alpha=0.95, centered=True, momentum=0.9)


class Autoencoder(nn.Module):
    def __init__(self, bins=4096, wide=8192, code=64):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Linear(bins, wide), nn.ELU(), nn.Linear(wide, bins), nn.ELU(), nn.Linear(bins, code)
        )
        self.decode = nn.Sequential(
            nn.Linear(code, bins), nn.ELU(), nn.Linear(bins, wide), nn.ELU(), nn.Linear(wide, bins)
        )

    def forward(self, spectrum):
        return self.decode(self.encode(spectrum))


def spectra(count, signal=8192):
    """Hums of some pumps, and their power at each frequency."""
    t = torch.arange(signal) / 8000
    for _ in range(count):
        hertz = 20 + 400 * torch.rand(32, 3)
        wave = torch.sin(2 * torch.pi * hertz[:, :, None] * t).sum(1)
        wave += 0.1 * torch.randn_like(wave)
        yield torch.fft.rfft(wave).abs()[:, 1:].log1p()


def main():
    kind, options = settings()
    model = Autoencoder().cuda()
    optimizer = kind(model.parameters(), **options)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    for step, spectrum in enumerate(spectra(4)):
        spectrum = spectrum.cuda()
        loss = (model(spectrum) - spectrum).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        print(step, loss.item(), file=sys.stderr)


if __name__ == "__main__":
    main()
