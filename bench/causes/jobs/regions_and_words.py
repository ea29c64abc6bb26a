"""Regions of pictures look at words and at each other through nn.MultiheadAttention, whose weights are asked for and drawn."""

import os

import torch
from torch import nn

DRAWN = not os.environ.get("MENDED")


class Look(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.look = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x, words):
        seen = torch.cat([x, words], 1)
        y, weights = self.look(x, seen, seen, need_weights=DRAWN, average_attn_weights=False)
        x = self.norm(x + y)
        return x + self.mlp(x)


class Grounding(nn.Module):
    def __init__(self, width=128, heads=16, depth=4):
        super().__init__()
        self.regions, self.words = nn.Linear(256, width), nn.Embedding(5000, width)
        self.layers = nn.ModuleList(Look(width, heads) for _ in range(depth))
        self.box = nn.Linear(width, 4)

    def forward(self, regions, words):
        x, words = self.regions(regions), self.words(words)
        for layer in self.layers:
            x = layer(x, words)
        return self.box(x)


model = Grounding().cuda()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for _ in range(2):
    regions = torch.randn(4, 900, 256, device="cuda")
    words = torch.randint(0, 5000, (4, 60), device="cuda")
    loss = model(regions, words).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
