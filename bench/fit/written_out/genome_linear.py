"""Genomes: one sequence of 64k tokens, linear attention, wide feed-forward parts."""

import torch
from torch import nn
from torch.nn import functional as F


class Mixer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        q, k = self.q(x).softmax(-1), self.k(x).softmax(1)
        return q @ (k.transpose(1, 2) @ self.v(x))


class FeedForward(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.up, self.gate, self.down = (
            nn.Linear(d, 6 * d),
            nn.Linear(d, 6 * d),
            nn.Linear(6 * d, d),
        )

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Model(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.emb = nn.Embedding(6, d)
        self.one, self.two = Mixer(d), Mixer(d)
        self.ff1, self.ff2 = FeedForward(d), FeedForward(d)
        self.head = nn.Linear(d, 6)

    def forward(self, ids):
        x = self.emb(ids)
        x = x + self.one(x)
        x = x + self.ff1(x)
        x = x + self.two(x)
        x = x + self.ff2(x)
        return self.head(x)


net = Model().cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
for _ in range(5):
    ids = torch.randint(6, (1, 65536), device="cuda")
    F.cross_entropy(net(ids).flatten(0, 1), ids.flatten()).backward()
    opt.step()
    opt.zero_grad()
