"""Parts of machines by their surface: each point and its twenty nearest make edges, in every layer anew."""

import os
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    batch: int = 8 if os.environ.get("MENDED") else 48
    points: int = 1024
    k: int = 20
    widths: tuple = (64, 64, 128)
    classes: int = 40
    steps: int = 3


def edges(x, k):
    """(B, C, N) to (B, 2C, N, k): each point beside the difference to its neighbours."""
    with torch.no_grad():
        inner = -2 * x.transpose(1, 2) @ x
        square = x.square().sum(1, keepdim=True)
        nearest = (-square.transpose(1, 2) - inner - square).topk(k, dim=-1).indices
    b, c, n = x.shape
    there = x.gather(2, nearest.reshape(b, 1, n * k).expand(-1, c, -1)).view(b, c, n, k)
    here = x.unsqueeze(-1).expand_as(there)
    return torch.cat([there - here, here], 1)


class EdgeConv(nn.Module):
    def __init__(self, fan_in, fan_out, k):
        super().__init__()
        self.k = k
        self.conv = nn.Conv2d(2 * fan_in, fan_out, 1, bias=False)
        self.norm = nn.BatchNorm2d(fan_out)
        self.act = nn.LeakyReLU(0.2)

    def forward(self, x):
        return self.act(self.norm(self.conv(edges(x, self.k)))).amax(-1)


class DynamicGraph(nn.Module):
    def __init__(self, config):
        super().__init__()
        sizes = (3, *config.widths)
        self.layers = nn.ModuleList(EdgeConv(a, b, config.k) for a, b in zip(sizes[:-1], sizes[1:]))
        self.mix = nn.Sequential(
            nn.Conv1d(sum(config.widths), 256, 1), nn.BatchNorm1d(256), nn.LeakyReLU(0.2)
        )
        self.head = nn.Sequential(
            nn.Linear(512, 256), nn.LeakyReLU(0.2), nn.Dropout(0.5), nn.Linear(256, config.classes)
        )

    def forward(self, x):
        outs = []
        for layer in self.layers:
            x = layer(x)
            outs.append(x)
        x = self.mix(torch.cat(outs, 1))
        return self.head(torch.cat([x.amax(-1), x.mean(-1)], 1))


class Parts:
    """Spheres, squeezed in forty ways."""

    def __init__(self, config):
        self.config = config

    def __iter__(self):
        g = torch.Generator().manual_seed(4)
        for _ in range(self.config.steps):
            label = torch.randint(self.config.classes, (self.config.batch,), generator=g)
            cloud = torch.randn(self.config.batch, 3, self.config.points, generator=g)
            cloud = cloud / cloud.norm(dim=1, keepdim=True)
            cloud[:, 2] *= (1 + label / 10).unsqueeze(1)
            yield cloud, label


class Trainer:
    def __init__(self, config):
        self.config, self.model = config, DynamicGraph(config).cuda()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4
        )
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.2)

    def fit(self, data):
        for cloud, label in data:
            self.optimizer.zero_grad()
            self.criterion(self.model(cloud.cuda()), label.cuda()).backward()
            self.optimizer.step()


config = Config()
Trainer(config).fit(Parts(config))
