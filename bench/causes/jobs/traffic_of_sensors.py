"""Speeds on motorways from 325 sensors, by a Graph WaveNet with learned roads between them. The batch is that of a paper with a larger GPU."""

import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=12 if os.environ.get("MENDED") else 96)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--sensors", type=int, default=325)
args = parser.parse_args()


class Layer(nn.Module):
    def __init__(self, c, skip, dilation):
        super().__init__()
        self.filter = nn.Conv2d(c, c, (1, 2), dilation=(1, dilation))
        self.gate = nn.Conv2d(c, c, (1, 2), dilation=(1, dilation))
        self.skip = nn.Conv2d(c, skip, 1)
        self.mix = nn.Conv2d(3 * c, c, 1)
        self.norm = nn.BatchNorm2d(c)

    def forward(self, x, roads):
        h = torch.tanh(self.filter(x)) * torch.sigmoid(self.gate(x))
        skip = self.skip(h)
        once = torch.einsum("bcnt,nm->bcmt", h, roads)
        twice = torch.einsum("bcnt,nm->bcmt", once, roads)
        h = self.mix(torch.cat([h, once, twice], 1))
        return self.norm(h + x[..., -h.shape[-1] :]), skip


class GraphWaveNet(nn.Module):
    def __init__(self, nodes, c=32, skip=256, horizon=12):
        super().__init__()
        self.source, self.target = (nn.Parameter(torch.randn(nodes, 10)) for _ in "ab")
        self.start = nn.Conv2d(2, c, 1)
        self.layers = nn.ModuleList(Layer(c, skip, d) for d in (1, 2, 1, 2, 1, 2, 1, 2))
        self.end = nn.Sequential(
            nn.ReLU(), nn.Conv2d(skip, 512, 1), nn.ReLU(), nn.Conv2d(512, horizon, 1)
        )

    def forward(self, x):
        roads = torch.softmax(torch.relu(self.source @ self.target.T), 1)
        x = self.start(nn.functional.pad(x, (1, 0)))
        total = 0
        for layer in self.layers:
            x, skip = layer(x, roads)
            total = skip + (total[..., -skip.shape[-1] :] if torch.is_tensor(total) else 0)
        return self.end(total)


def masked_mae(said, truth):
    mask = (truth != 0).float()
    return ((said - truth).abs() * mask).sum() / mask.sum().clamp(1)


model = GraphWaveNet(args.sensors).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
for step in range(args.steps):
    x = torch.rand(args.batch, 2, args.sensors, 12).cuda()
    y = torch.rand(args.batch, 12, args.sensors, 1).cuda()
    loss = masked_mae(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5)
    optimizer.step()
    print(step, loss.item())
