"""Four weeks of quarter hours of a city's electricity, and each quarter hour attends to each."""

import math
import os

import torch
from torch import nn

FUSED = "MENDED" in os.environ


class Attention(nn.Module):
    """Attention with a learned decay by how long ago it was."""

    def __init__(self, d, heads, p=0.1):
        super().__init__()
        self.h, self.p = heads, p
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        if FUSED:
            y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=self.p)
        else:
            q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
            ago = torch.zeros(1, n, n, device=x.device)
            a = torch.baddbmm(ago, q, k.transpose(1, 2), alpha=1 / math.sqrt(d // self.h))
            y = torch.bmm(self.drop(a.softmax(2)), v)
        return self.out(y.reshape(b, self.h, n, -1).transpose(1, 2).reshape(b, n, d))


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.attention, self.n1, self.n2 = Attention(d, heads), nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        x = self.n1(x + self.attention(x))
        return self.n2(x + self.mlp(x))


class Forecaster(nn.Module):
    def __init__(self, d=64, heads=4, layers=4, ahead=96):
        super().__init__()
        self.embed, self.slot = nn.Linear(5, d), nn.Embedding(96, d)
        self.layers = nn.ModuleList([Layer(d, heads) for _ in range(layers)])
        self.head = nn.Linear(d, ahead)

    def forward(self, x, slot):
        h = self.embed(x) + self.slot(slot)
        for layer in self.layers:
            h = layer(h)
        return self.head(h[:, -1])


def pinball(pred, true, q=0.9):
    diff = true - pred
    return torch.maximum(q * diff, (q - 1) * diff).mean()


model = Forecaster().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=10)
for i in range(3):
    x = torch.randn(4, 28 * 96, 5, device="cuda")
    slot = torch.arange(28 * 96, device="cuda").remainder(96)
    loss = pinball(model(x, slot), torch.randn(4, 96, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
