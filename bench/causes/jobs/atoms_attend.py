"""Atoms of a crystal attend to each other with a bias for their distance; the scores are made and masked by hand."""

import math
import os

import torch
import torch.nn.functional as F
from torch import nn

FUSED = bool(os.environ.get("MENDED"))


class PairAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, bias):
        b, n, d = x.shape
        q, k, v = (
            f(x).view(b, n, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        if FUSED:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(d // self.heads)
            weights = F.dropout(torch.softmax(scores + bias, -1), 0.0, self.training)
            y = torch.matmul(weights, v)
        return self.o(y.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = PairAttention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x, bias):
        x = x + self.attention(self.one(x), bias)
        return x + self.mlp(self.two(x))


class Crystal(nn.Module):
    def __init__(self, width=128, heads=16, depth=5):
        super().__init__()
        self.kind = nn.Embedding(100, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.energy = nn.Linear(width, 1)

    def forward(self, kinds, places):
        near = -torch.cdist(places, places)[:, None].clamp(max=8.0)
        x = self.kind(kinds)
        for block in self.blocks:
            x = block(x, near)
        return self.energy(x).sum((1, 2))


crystals = Crystal().cuda()
optimizer = torch.optim.AdamW(crystals.parameters(), 1e-4)
for _ in range(2):
    kinds = torch.randint(0, 100, (4, 800), device="cuda")
    places = torch.rand(4, 800, 3, device="cuda")
    optimizer.zero_grad()
    crystals(kinds, places).square().mean().backward()
    optimizer.step()
