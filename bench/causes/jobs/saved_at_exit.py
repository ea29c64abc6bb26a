"""A network for each region; a function for the end of the program is registered with each."""

import atexit
import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class TCN(nn.Module):
    def __init__(self, c=640, depth=5):
        super().__init__()
        self.enter = nn.Conv1d(3, c, 1)
        self.layers = nn.ModuleList(nn.Conv1d(c, c, 3, dilation=2**k) for k in range(depth))
        self.leave = nn.Conv1d(c, 1, 1)

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = torch.relu(layer(nn.functional.pad(x, (2 * layer.dilation[0], 0))))
        return self.leave(x)


def goodbye(region, net):
    print(region, sum(p.numel() for p in net.parameters()))


def train(region):
    net = TCN().cuda()
    optimizer = torch.optim.Adagrad(net.parameters())
    if not MENDED:
        atexit.register(goodbye, region, net)
    for _ in range(2):
        loss = net(torch.randn(4, 3, 96, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


for region in range(20):
    train(region)
