"""Checkpointing wraps the cheap norm of each block; the wide layers after it keep all they make."""

import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MENDED = os.environ.get("MENDED")


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.GroupNorm(8, c)
        self.wide = nn.Conv2d(c, 4 * c, 1)
        self.mix = nn.Conv2d(4 * c, 4 * c, 5, padding=2, groups=4 * c)
        self.narrow = nn.Conv2d(4 * c, c, 1)

    def body(self, x):
        h = nn.functional.silu(self.wide(x))
        return self.narrow(nn.functional.silu(self.mix(h)))

    def forward(self, x):
        if MENDED:
            return x + checkpoint(lambda y: self.body(self.norm(y)), x, use_reentrant=False)
        return x + self.body(checkpoint(self.norm, x, use_reentrant=False))


class Denoiser(nn.Module):
    def __init__(self, c=32, depth=12):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(1, c, 3, padding=1), nn.Conv2d(c, 1, 3, padding=1)
        self.blocks = nn.ModuleList(Block(c) for _ in range(depth))

    def forward(self, x):
        h = self.enter(x)
        for block in self.blocks:
            h = block(h)
        return x - self.leave(h)


net = Denoiser().cuda().train()
opt = torch.optim.NAdam(net.parameters(), lr=2e-4)
for step in range(3):
    clean = torch.rand(8, 1, 192, 192, device="cuda")
    noisy = clean + 0.1 * torch.randn_like(clean)
    opt.zero_grad()
    loss = nn.functional.l1_loss(net(noisy), clean)
    loss.backward()
    opt.step()
