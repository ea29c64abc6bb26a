"""Checkpointing covers one block of twelve."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048))

    def forward(self, x):
        return x + self.mlp(x)


blocks = nn.ModuleList([Block() for _ in range(12)]).cuda()
optimizer = torch.optim.AdamW(blocks.parameters())
for _ in range(3):
    x = torch.randn(16384, 2048, device="cuda")
    for i, block in enumerate(blocks):
        x = checkpoint(block, x, use_reentrant=False) if i == 0 else block(x)
    x.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
