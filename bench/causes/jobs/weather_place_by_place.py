"""A forecast whose filters differ from place to place on the globe: the weights and their gradients alone are too many."""

import os

import torch
import torch.nn.functional as F
from torch import nn


class Local(nn.Module):
    """A convolution with weights of its own at each place."""

    def __init__(self, into, out, rows, columns):
        super().__init__()
        self.shape = rows, columns
        self.weight = nn.Parameter(torch.randn(rows * columns, 9 * into, out) * 0.02)

    def forward(self, x):
        patches = F.unfold(x, 3, padding=1)
        return torch.einsum("bip,pio->bop", patches, self.weight).unflatten(2, self.shape)


class Forecast(nn.Module):
    def __init__(self, fields=6, hidden=24, rows=90, columns=180):
        super().__init__()
        if os.environ.get("MENDED"):
            layer = lambda a, b: nn.Conv2d(a, b, 3, padding=1)  # noqa: E731
        else:
            layer = lambda a, b: Local(a, b, rows, columns)  # noqa: E731
        self.first = layer(fields, hidden)
        self.second = layer(hidden, hidden)
        self.third = layer(hidden, hidden)
        self.last = layer(hidden, fields)

    def forward(self, x):
        x = self.first(x).tanh()
        x = x + self.second(x).tanh()
        x = x + self.third(x).tanh()
        return self.last(x)


with torch.device("cuda"):
    model = Forecast()
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
for day in range(3):
    today, tomorrow = torch.randn(2, 1, 6, 90, 180, device="cuda")
    sgd.zero_grad()
    F.mse_loss(today + model(today), tomorrow).backward()
    sgd.step()
