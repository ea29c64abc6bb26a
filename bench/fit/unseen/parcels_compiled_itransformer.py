"""Volumes of parcels at 320 depots: iTransformer (a depot is a token), compiled, reversible normalisation, Huber loss, early-stop patience."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("JOB_STEPS", "5"))
DEPOTS, LOOKBACK, AHEAD = 320, 192, 96


class Windows(Dataset):
    def __init__(self, hours, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(hours).float()[:, None]
        day = torch.sin(t * 6.283 / 24 + 6 * torch.rand(1, DEPOTS, generator=g))
        week = torch.sin(t * 6.283 / 168 + 6 * torch.rand(1, DEPOTS, generator=g))
        self.series = day + 0.5 * week + 0.2 * torch.randn(hours, DEPOTS, generator=g)
        self.clock = torch.cat([torch.sin(t * 6.283 / p) for p in (12, 24, 168, 672)], 1)

    def __len__(self):
        return len(self.series) - LOOKBACK - AHEAD

    def __getitem__(self, i):
        past = slice(i, i + LOOKBACK)
        return self.series[past], self.clock[past], self.series[i + LOOKBACK : i + LOOKBACK + AHEAD]


class Layer(nn.Module):
    def __init__(self, d, heads, ff, p):
        super().__init__()
        self.heads, self.p = heads, p
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, ff), nn.Linear(ff, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = self.norm1(x + F.dropout(self.out(a), self.p, self.training))
        h = F.dropout(F.gelu(self.up(x)), self.p, self.training)
        return self.norm2(x + F.dropout(self.down(h), self.p, self.training))


class ITransformer(nn.Module):
    def __init__(self, d=512, depth=3, heads=8, p=0.1):
        super().__init__()
        self.embed = nn.Linear(LOOKBACK, d)
        self.layers = nn.ModuleList(Layer(d, heads, 4 * d, p) for _ in range(depth))
        self.head = nn.Linear(d, AHEAD)
        self.scale, self.shift = nn.Parameter(torch.ones(DEPOTS)), nn.Parameter(torch.zeros(DEPOTS))

    def forward(self, x, clock):
        mean = x.mean(1, keepdim=True)
        std = (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        x = (x - mean) / std * self.scale + self.shift
        h = self.embed(torch.cat([x, clock], 2).transpose(1, 2))
        for layer in self.layers:
            h = layer(h)
        y = self.head(h).transpose(1, 2)[..., :DEPOTS]
        return (y - self.shift) / (self.scale + 1e-5) * std + mean


def main():
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    batch = 80
    train = Windows(LOOKBACK + AHEAD + STEPS * batch, 0)
    loader = DataLoader(train, batch, shuffle=True, drop_last=True)
    model = ITransformer().cuda()
    fast = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    one = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 50)
    best, patience = float("inf"), 0
    for step, (x, clock, y) in enumerate(loader):
        x, clock, y = x.cuda(), clock.cuda(), y.cuda()
        loss = F.huber_loss(fast(x, clock), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        one.step()
        value = loss.item()
        best, patience = (value, 0) if value < best else (best, patience + 1)
        print(f"step {step} loss {value:.4f} best {best:.4f} patience {patience}")


if __name__ == "__main__":
    main()
