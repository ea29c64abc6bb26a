"""Enhancers in DNA: attention with a linear bias, softmax and dropout written by hand over 2048 places."""

import math
import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = bool(os.environ.get("MENDED"))


def linear_bias(heads, n):
    slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1) / heads)
    apart = (torch.arange(n)[:, None] - torch.arange(n)[None]).abs()
    return -slopes[:, None, None] * apart


class Attend(nn.Module):
    def __init__(self, width, heads, drop):
        super().__init__()
        self.heads, self.drop = heads, drop
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Linear(width, width)

    def forward(self, x, bias):
        b, n, w = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if MENDED:
            bias = bias.expand(b, -1, -1, -1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=self.drop)
        else:
            weights = q @ k.transpose(-2, -1) / math.sqrt(w // self.heads) + bias
            y = F.dropout(weights.softmax(-1), self.drop) @ v
        return self.to_out(y.transpose(1, 2).reshape(b, n, w))


class Enhancers(nn.Module):
    def __init__(self, width=256, heads=8, depth=6, n=2048):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(4, width, 15, padding=7), nn.GELU(), nn.MaxPool1d(4))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.blocks = nn.ModuleList(Attend(width, heads, 0.1) for _ in range(depth))
        self.head = nn.Linear(width, 1)
        self.register_buffer("bias", linear_bias(heads, n))

    def forward(self, bases):
        x = self.stem(bases).transpose(1, 2)
        for norm, block in zip(self.norms, self.blocks):
            x = x + block(norm(x), self.bias)
        return self.head(x).squeeze(-1)


net = Enhancers().cuda()
adam = torch.optim.AdamW(net.parameters(), lr=2e-4)
for _ in range(2):
    bases = F.one_hot(torch.randint(4, (2, 8192), device="cuda"), 4).transpose(1, 2).float()
    active = torch.randint(2, (2, 2048), device="cuda").float()
    loss = F.binary_cross_entropy_with_logits(net(bases), active)
    adam.zero_grad()
    loss.backward()
    adam.step()
