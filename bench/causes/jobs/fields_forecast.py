"""A neural operator forecasts fields on a sphere, trained by accelerate with a batch that is too large."""

import os

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 2 if os.environ.get("MENDED") else 16


class SpectralConv(nn.Module):
    """Multiplies the lowest frequencies by learned numbers."""

    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(
            torch.randn(width, width, modes, modes, dtype=torch.cfloat) / width
        )

    def forward(self, x):
        m = self.modes
        spectrum = torch.fft.rfft2(x)
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m, :m], self.weight)
        out = torch.zeros_like(spectrum)
        out[:, :, :m, :m] = low
        return torch.fft.irfft2(out, s=x.shape[-2:])


class Operator(nn.Module):
    def __init__(self, variables=5, width=32, depth=4):
        super().__init__()
        self.lift, self.project = nn.Conv2d(variables, width, 1), nn.Conv2d(width, variables, 1)
        self.spectral = nn.ModuleList(SpectralConv(width, 16) for _ in range(depth))
        self.local = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))

    def forward(self, x):
        x = self.lift(x)
        for spectral, local in zip(self.spectral, self.local):
            x = x + nn.functional.gelu(spectral(x) + local(x))
        return self.project(x)


accelerator = Accelerator()
data = TensorDataset(torch.randn(32, 5, 192, 384))
model = Operator()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, BATCH))
for number, (now,) in enumerate(loader):
    if number == 2:
        break
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(now), now.roll(1, -1))
    accelerator.backward(loss)
    optimizer.step()
