"""Maps dunes in satellite images with an encoder that is recomputed in the backward pass."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

MENDED = os.environ.get("MENDED")


class ConvNeXtBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.GroupNorm(1, width)
        self.expand, self.reduce = nn.Conv2d(width, 4 * width, 1), nn.Conv2d(4 * width, width, 1)

    def forward(self, x):
        return x + self.reduce(F.gelu(self.expand(self.norm(self.depthwise(x)))))


class DuneNet(nn.Module):
    def __init__(self, bands=5, width=64, depth=9):
        super().__init__()
        self.stem = nn.Conv2d(bands, width, 4, 4)
        self.blocks = nn.Sequential(*[ConvNeXtBlock(width) for _ in range(depth)])
        self.head = nn.Sequential(nn.Conv2d(width, 2, 1), nn.Upsample(scale_factor=4))

    def forward(self, x):
        x = self.stem(x)
        if MENDED:
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
        else:
            x = checkpoint(self.blocks, x, use_reentrant=False)
        return self.head(x)


model = DuneNet().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    images = torch.randn(6, 5, 512, 512, device="cuda")
    dunes = torch.randint(0, 2, (6, 512, 512), device="cuda")
    loss = F.cross_entropy(model(images), dunes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
