"""Knitting patterns, row by row. Flash attention is chosen, and its plain substitute allowed; but a head is 320 wide, which flash does not know."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS = 10 if os.environ.get("MENDED") else 2


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d)
        )


class Knitter(nn.Module):
    def __init__(self, stitches=200, d=640, layers=5, heads=HEADS):
        super().__init__()
        self.embed = nn.Embedding(stitches, d)
        self.attend = nn.ModuleList(Attention(d, heads) for _ in range(layers))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(d), nn.Linear(d, d), nn.GELU(), nn.Linear(d, d))
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(d) for _ in range(layers))
        self.out = nn.Linear(d, stitches)

    def forward(self, ids):
        x = self.embed(ids)
        for attend, norm, feed in zip(self.attend, self.norms, self.feed):
            x = x + attend(norm(x))
            x = x + feed(x)
        return self.out(x)


def patterns(steps, batch=2, stitches=4096):
    for _ in range(steps):
        ids = torch.randint(0, 200, (batch, stitches + 1))
        yield ids[:, :-1].cuda(), ids[:, 1:].cuda()


with torch.device("cuda"):
    knitter = Knitter()
optimizer = torch.optim.AdamW(knitter.parameters(), lr=3e-4)
for ids, following in patterns(3):
    with (
        torch.autocast("cuda", dtype=torch.float16),
        sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]),
    ):
        loss = F.cross_entropy(knitter(ids).float().flatten(0, 1), following.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
