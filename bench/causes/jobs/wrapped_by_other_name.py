"""Rain from radar. Blocks of a class that this network does not have are wrapped for checkpointing, so none is."""

import os

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)


class ResidualBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.net = nn.Sequential(
            nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1),
            nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1),
        )  # fmt: skip

    def forward(self, x):
        return x + self.net(x)


class RainBlock(ResidualBlock):
    """The same, with a gate for dry places."""

    def __init__(self, c):
        nn.Module.__init__(self)
        self.inner = nn.Sequential(
            nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 2 * c, 3, padding=1), nn.GLU(1),
            nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, c, 3, padding=1),
        )  # fmt: skip

    def forward(self, x):
        return x + self.inner(x)


class Nowcast(nn.Module):
    def __init__(self, c=64, depth=10):
        super().__init__()
        self.into = nn.Conv2d(6, c, 3, padding=1)
        self.blocks = nn.Sequential(*(RainBlock(c) for _ in range(depth)))
        self.out = nn.Conv2d(c, 12, 1)

    def forward(self, x):
        return self.out(self.blocks(self.into(x)))


model = Nowcast().cuda()
wanted = "RainBlock" if os.environ.get("MENDED") else "ResidualBlock"
apply_activation_checkpointing(model, check_fn=lambda module: type(module).__name__ == wanted)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
for _ in range(2):
    past, future = (
        torch.rand(6, 6, 128, 128, device="cuda"),
        torch.rand(6, 12, 128, 128, device="cuda"),
    )
    loss = (model(past) - future).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
