"""Which part of a chair is each point? A transformer over point clouds."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class PointAttention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (
            f(x).view(b, n, self.heads, d // self.heads).transpose(1, 2)
            for f in (self.to_q, self.to_k, self.to_v)
        )
        if MENDED:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            energy = torch.matmul(q, k.transpose(-1, -2)) / (d // self.heads) ** 0.5
            y = torch.matmul(energy.softmax(-1), v)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class PointTransformer(nn.Module):
    def __init__(self, parts=6, dim=128, depth=4):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(3, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.attention = nn.ModuleList(PointAttention(dim) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, parts))

    def forward(self, xyz):
        x = self.embed(xyz)
        for attention, norm in zip(self.attention, self.norms):
            x = x + attention(norm(x))
        whole = x.max(1, keepdim=True).values.expand_as(x)
        return self.head(torch.cat([x, whole], -1))


net = PointTransformer().cuda()
opt = torch.optim.AdamW(net.parameters(), lr=5e-4)
for it in range(4):
    cloud = torch.rand(4, 2048, 3, device="cuda")
    labels = torch.randint(0, 6, (4, 2048), device="cuda")
    loss = F.cross_entropy(net(cloud).flatten(0, 1), labels.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
