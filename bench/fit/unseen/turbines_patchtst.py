"""Wind turbines' power: PatchTST over many channels, reversible instance normalization, own early stopping."""

import torch
import torch.nn as nn


class RevIN(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.zeros(channels)),
        )

    def norm(self, x):
        self.mean = x.mean(1, keepdim=True).detach()
        self.std = (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        return (x - self.mean) / self.std * self.weight + self.bias

    def denorm(self, x):
        return (x - self.bias) / self.weight * self.std + self.mean


class EncoderLayer(nn.Module):
    def __init__(self, d, heads, ff, dropout):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.norm1, self.norm2 = nn.BatchNorm1d(d), nn.BatchNorm1d(d)
        self.ff = nn.Sequential(nn.Linear(d, ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(ff, d))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, prev=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5
        if prev is not None:
            scores = scores + prev
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d)
        x = self.norm1((x + self.drop(self.out(y))).transpose(1, 2)).transpose(1, 2)
        x = self.norm2((x + self.drop(self.ff(x))).transpose(1, 2)).transpose(1, 2)
        return x, scores


class PatchTST(nn.Module):
    def __init__(self, channels=134, window=512, horizon=96, patch=16, stride=8, d=128, layers=3):
        super().__init__()
        self.patch, self.stride = patch, stride
        n = (window - patch) // stride + 2
        self.revin = RevIN(channels)
        self.embed = nn.Linear(patch, d)
        self.pos = nn.Parameter(torch.randn(1, n, d) * 0.02)
        self.layers = nn.ModuleList([EncoderLayer(d, 16, 256, 0.2) for _ in range(layers)])
        self.head = nn.Linear(d * n, horizon)

    def forward(self, x):
        b, _, c = x.shape
        x = self.revin.norm(x).transpose(1, 2)
        x = nn.functional.pad(x, (0, self.stride), mode="replicate")
        x = self.embed(x.unfold(-1, self.patch, self.stride)).flatten(0, 1) + self.pos
        scores = None
        for layer in self.layers:
            x, scores = layer(x, scores)
        y = self.head(x.flatten(1)).view(b, c, -1).transpose(1, 2)
        return self.revin.denorm(y)


def fit(model, series, steps=8, batch=16, patience=3):
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    best, bad = float("inf"), 0
    for step in range(steps):
        starts = torch.randint(0, len(series) - 608, (batch,))
        windows = torch.stack([series[s : s + 608] for s in starts.tolist()]).cuda()
        loss = nn.functional.mse_loss(model(windows[:, :512]), windows[:, 512:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        value = loss.item()
        print(step, value)
        if step >= 100:
            best, bad = (value, 0) if value < best else (best, bad + 1)
            if bad > patience:
                break


if __name__ == "__main__":
    torch.manual_seed(1)
    fit(PatchTST().cuda(), torch.randn(5000, 134))
