"""Cracks in pictures of tunnels. Each block is wrapped in a checkpoint, but its dear part is computed on the way into the call, so nothing is saved."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

MENDED = os.environ.get("MENDED")


class Dense(nn.Module):
    """Three wide convolutions and a gate."""

    def __init__(self, c, wide):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, wide, 1), nn.GroupNorm(8, wide), nn.GELU(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=8), nn.GroupNorm(8, wide), nn.GELU(),
            nn.Conv2d(wide, c, 1),
        )  # fmt: skip
        self.gate = nn.Parameter(torch.zeros(c, 1, 1))

    def join(self, x, h):
        return x + self.gate * h

    def whole(self, x):
        return self.join(x, self.body(x))

    def forward(self, x):
        if MENDED:
            return checkpoint(self.whole, x, use_reentrant=False)
        return checkpoint(self.join, x, self.body(x), use_reentrant=False)


class Cracks(nn.Module):
    def __init__(self, c=48, wide=192, depth=9):
        super().__init__()
        self.enter = nn.Conv2d(1, c, 4, 4)
        self.blocks = nn.Sequential(*(Dense(c, wide) for _ in range(depth)))
        self.leave = nn.Conv2d(c, 16, 1)

    def forward(self, picture):
        return F.pixel_shuffle(self.leave(self.blocks(self.enter(picture))), 4)


def tversky(scores, truth, a=0.3, b=0.7):
    p = scores.sigmoid()
    hit, false, missed = (p * truth).sum(), (p * (1 - truth)).sum(), ((1 - p) * truth).sum()
    return 1 - (hit + 1) / (hit + a * false + b * missed + 1)


model = Cracks().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(3):
    picture = torch.rand(8, 1, 384, 384).cuda()
    truth = (torch.rand(8, 1, 384, 384) < 0.02).float().cuda()
    loss = tversky(model(picture), truth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
