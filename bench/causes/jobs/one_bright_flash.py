"""An event camera on a robot: a batch is what happened in a tenth of a second. Once the sun is in the mirror, and every pixel fires many times."""

import os

import torch
import torch.nn.functional as F
from torch import nn

SIDE, BINS = 128, 5
CAP = 60_000 if os.environ.get("MENDED") else None
HAPPENED = (18_000, 25_000, 9_000, 21_000, 30_000, 16_000, 900_000, 22_000, 17_000)


def events(count):
    """(x, y, t, polarity) of each event, from 0 to 1."""
    window = torch.rand(count, 4)
    if CAP and count > CAP:
        window = window[torch.randperm(count)[:CAP]]
    return window


class Kernel(nn.Module):
    """What an event adds to the grid is learned, for each event."""

    def __init__(self, width=128):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(4, width), nn.LeakyReLU(0.1), nn.Linear(width, width), nn.LeakyReLU(0.1),
            nn.Linear(width, width), nn.LeakyReLU(0.1), nn.Linear(width, BINS),
        )  # fmt: skip

    def forward(self, window):
        values = self.mlp(window)
        column = (window[:, 0] * (SIDE - 1)).long()
        row = (window[:, 1] * (SIDE - 1)).long()
        grid = values.new_zeros(SIDE * SIDE, BINS)
        return grid.index_add(0, row * SIDE + column, values).T.reshape(1, BINS, SIDE, SIDE)


class Steering(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = Kernel()
        layers, c = [], BINS
        for o in (32, 64, 128, 128):
            layers += [nn.Conv2d(c, o, 3, 2, 1), nn.GroupNorm(8, o), nn.ReLU()]
            c = o
        self.see = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 1))

    def forward(self, window):
        return self.see(self.kernel(window)).squeeze()


robot = Steering().cuda()
optimizer = torch.optim.Adam(robot.parameters(), lr=1e-3)
for moment, count in enumerate(HAPPENED):
    angle = robot(events(count).cuda())
    loss = F.mse_loss(angle, torch.rand((), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(moment, count, loss.item())
