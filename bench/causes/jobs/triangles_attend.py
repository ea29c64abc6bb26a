"""Pairs of residues attend along rows and along columns of their square, as in the Evoformer."""

import os

import torch
from torch import einsum, nn
from torch.utils.checkpoint import checkpoint

# With a chunk, so many rows attend at once, and again in backward.
CHUNK = 8 if os.environ.get("MENDED") else None


class TriangleAttention(nn.Module):
    def __init__(self, c, heads, starting):
        super().__init__()
        self.starting, self.heads = starting, heads
        self.norm = nn.LayerNorm(c)
        self.to_bias = nn.Linear(c, heads, bias=False)
        self.to_qkv = nn.Linear(c, 3 * c, bias=False)
        self.gate, self.out = nn.Linear(c, c), nn.Linear(c, c)

    def rows(self, q, k, v, bias):
        a = einsum("rhic,rhjc->rhij", q, k) * q.shape[-1] ** -0.5 + bias
        return einsum("rhij,rhjc->rhic", a.softmax(-1), v)

    def forward(self, z):
        x = self.norm(z if self.starting else z.transpose(0, 1))
        r, n, c = x.shape
        q, k, v = self.to_qkv(x).view(r, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.to_bias(x).permute(2, 0, 1).unsqueeze(0)
        if CHUNK is None:
            o = self.rows(q, k, v, bias)
        else:
            parts = zip(q.split(CHUNK), k.split(CHUNK), v.split(CHUNK))
            o = torch.cat([checkpoint(self.rows, *p, bias, use_reentrant=False) for p in parts])
        o = self.out(self.gate(x).sigmoid() * o.transpose(1, 2).reshape(r, n, c))
        return z + (o if self.starting else o.transpose(0, 1))


class PairStack(nn.Sequential):
    def __init__(self, c=32, heads=4, blocks=3):
        layers = []
        for _ in range(blocks):
            layers += [TriangleAttention(c, heads, True), TriangleAttention(c, heads, False)]
        super().__init__(*layers)


class Distogram(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.stack = nn.Embedding(21, 32), nn.Embedding(21, 32), PairStack()
        self.bins = nn.Linear(32, 37)

    def forward(self, residues):
        z = self.left(residues).unsqueeze(1) + self.right(residues).unsqueeze(0)
        z = self.stack(z)
        return self.bins(z + z.transpose(0, 1))


net = Distogram().to("cuda")
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for protein in range(3):
    residues = torch.randint(0, 21, (256,), device="cuda")
    distances = torch.randint(0, 37, (256, 256), device="cuda")
    loss = nn.functional.cross_entropy(net(residues).flatten(0, 1), distances.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
