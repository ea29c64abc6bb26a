"""Magnetic resonance images are rebuilt by an unrolled network, too many slices at once."""

import os

import torch
from torch import nn

SLICES = 2 if os.environ.get("MENDED") else 16
SIDE = 320


class Cascade(nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, channels, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(channels, 2, 3, padding=1),
        )

    def forward(self, image, measured, mask):
        k = torch.where(mask, measured, torch.fft.fft2(image, norm="ortho"))
        image = torch.fft.ifft2(k, norm="ortho")
        change = self.net(torch.view_as_real(image).permute(0, 3, 1, 2))
        return image + torch.view_as_complex(change.permute(0, 2, 3, 1).contiguous())


class Unrolled(nn.Module):
    def __init__(self, cascades=6):
        super().__init__()
        self.cascades = nn.ModuleList(Cascade() for _ in range(cascades))

    def forward(self, measured, mask):
        image = torch.fft.ifft2(measured, norm="ortho")
        for cascade in self.cascades:
            image = cascade(image, measured, mask)
        return image


model = Unrolled().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
mask = (torch.arange(SIDE, device="cuda") % 4 == 0).expand(SIDE, SIDE)
for step in range(3):
    truth = torch.randn(SLICES, SIDE, SIDE, dtype=torch.complex64, device="cuda")
    measured = torch.fft.fft2(truth, norm="ortho") * mask
    error = (model(measured, mask) - truth).abs().mean()
    optimizer.zero_grad(set_to_none=True)
    error.backward()
    optimizer.step()
