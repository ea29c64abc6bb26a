"""A super-resolution network (EDSR) with far more patches in a batch than fit."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = os.environ.get("MENDED")


class Patches(Dataset):
    def __len__(self):
        return 1200

    def __getitem__(self, i):
        high = torch.rand(3, 96, 96)
        return nn.functional.avg_pool2d(high, 2), high


class ResBlock(nn.Module):
    def __init__(self, c, scale=0.1):
        super().__init__()
        self.a, self.b, self.scale = nn.Conv2d(c, c, 3, 1, 1), nn.Conv2d(c, c, 3, 1, 1), scale

    def forward(self, x):
        return x + self.scale * self.b(self.a(x).relu())


class EDSR(nn.Sequential):
    def __init__(self, c=64, depth=16):
        super().__init__(
            nn.Conv2d(3, c, 3, 1, 1), *[ResBlock(c) for _ in range(depth)],
            nn.Conv2d(c, 4 * c, 3, 1, 1), nn.PixelShuffle(2), nn.Conv2d(c, 3, 3, 1, 1),
        )  # fmt: skip


net = EDSR().to("cuda:0")
adam = torch.optim.Adam(net.parameters(), lr=1e-4)
loader = DataLoader(Patches(), batch_size=32 if MENDED else 256)
for k, (low, high) in enumerate(loader):
    error = nn.functional.l1_loss(net(low.cuda()), high.cuda())
    adam.zero_grad()
    error.backward()
    adam.step()
    if k == 3:
        break
