"""A U-Net checkpoints its two halves: each is one piece, so backward has all of a half at once."""

import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

EACH = bool(os.environ.get("MENDED"))


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.LeakyReLU(0.1))


class Half(nn.Module):
    """Many convolutions at one resolution."""

    def __init__(self, width, depth=12):
        super().__init__()
        self.blocks = nn.ModuleList(conv(width, width) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if EACH else block(x)
        return x


class Restore(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.stem, self.out = conv(3, width), nn.Conv2d(width, 3, 1)
        self.down, self.up = Half(width), Half(width)

    def forward(self, x):
        y = self.stem(x)
        for half in (self.down, self.up):
            y = half(y) if EACH else checkpoint(half, y, use_reentrant=False)
        return x + self.out(y)


model = Restore().cuda()
optimizer = torch.optim.Adam(model.parameters(), 2e-4)
for _ in range(2):
    film = torch.rand(4, 3, 192, 192, device="cuda")
    loss = (model(film) - film).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
