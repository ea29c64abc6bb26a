"""Which frogs call in the recording? A residual 1-D network with checkpointing throughout."""

import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

MENDED = os.environ.get("MENDED")


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.Conv1d(width, 2 * width, 9, padding=4),
                nn.BatchNorm1d(2 * width),
                nn.SiLU(),
                nn.Conv1d(2 * width, 2 * width, 9, padding=4, groups=width // 8),
                nn.BatchNorm1d(2 * width),
                nn.SiLU(),
                nn.Conv1d(2 * width, width, 1),
            ]
        )

    def forward(self, x):
        y = x
        for layer in self.layers:
            if MENDED:
                y = layer(y)
            else:
                y = checkpoint(layer, y, use_reentrant=False)
        return x + y


class FrogNet(nn.Module):
    def __init__(self, width=64, depth=8, species=31):
        super().__init__()
        self.stem = nn.Conv1d(1, width, 16, stride=8, padding=4)
        self.body = nn.ModuleList(Residual(width) for _ in range(depth))
        self.head = nn.Linear(width, species)

    def forward(self, wave):
        x = self.stem(wave.unsqueeze(1))
        for block in self.body:
            x = checkpoint(block, x, use_reentrant=False) if MENDED else block(x)
        return self.head(x.mean(-1))


net = FrogNet().cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
loss_fn = nn.BCEWithLogitsLoss()
for step in range(3):
    wave = torch.randn(16, 96_000).cuda()
    heard = torch.randint(0, 2, (16, 31)).float().cuda()
    loss = loss_fn(net(wave), heard)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
