"""Electrodes on the scalp: attention over 1024 moments with relative positions, whose scores are all written out."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F


class RelativeAttention(nn.Module):
    """As in Transformer-XL: a score of contents and a score of distances."""

    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.query, self.key, self.value, self.place = (nn.Linear(dim, dim) for _ in range(4))
        self.u = nn.Parameter(torch.zeros(heads, 1, self.d))
        self.v = nn.Parameter(torch.zeros(heads, 1, self.d))
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(dim, dim)

    def heads(self, x):
        return x.unflatten(-1, (self.h, self.d)).transpose(-2, -3)

    @staticmethod
    def shift(scores):
        b, h, n, m = scores.shape
        return (
            F.pad(scores, (1, 0))
            .view(b, h, m + 1, n)[:, :, 1:]
            .reshape(b, h, n, m)[..., : m // 2 + 1]
        )

    def forward(self, x, places):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        if os.environ.get("MENDED"):
            y = F.scaled_dot_product_attention(q + self.u, k, v, dropout_p=0.1)
        else:
            contents = (q + self.u) @ k.mT
            distances = self.shift((q + self.v) @ self.heads(self.place(places)).mT)
            weights = ((contents + distances) * self.d**-0.5).softmax(-1)
            y = self.drop(weights) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Sleep(nn.Module):
    def __init__(self, electrodes=32, dim=192, heads=8, depth=5, stages=5):
        super().__init__()
        self.waves = nn.Conv1d(electrodes, dim, 9, stride=4, padding=4)
        self.attend = nn.ModuleList(RelativeAttention(dim, heads) for _ in range(depth))
        self.norm = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.stage = nn.Linear(dim, stages)
        self.places = nn.Parameter(torch.randn(2 * 1024 - 1, dim) * 0.02)

    def forward(self, x):
        x = self.waves(x).transpose(1, 2)
        for attend, norm in zip(self.attend, self.norm):
            x = norm(x + attend(x, self.places))
        return self.stage(x)


model = Sleep().cuda()
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3)
for night in range(2):
    signal, stage = torch.randn(4, 32, 4096).cuda(), torch.randint(5, (4, 1024)).cuda()
    loss = F.cross_entropy(model(signal).transpose(1, 2), stage)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
