"""A small forecaster for every gauging station of a river, side by side on the GPU."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class Gauge(nn.Module):
    def __init__(self, history=168, width=256, horizon=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(history, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, horizon),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x)


class Station:
    def __init__(self, number):
        self.number = number
        self.net = Gauge().cuda()
        self.stream = torch.cuda.current_stream() if MENDED else torch.cuda.Stream()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def step(self):
        with torch.cuda.stream(self.stream):
            past = torch.randn(64, 168, device="cuda")
            level = torch.randn(64, 24, device="cuda")
            loss = (self.net(past) - level).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


stations = [Station(n) for n in range(30)]
torch.cuda.synchronize()
for epoch in range(2):
    for station in stations:
        station.step()
    torch.cuda.synchronize()
print("stations:", len(stations))
