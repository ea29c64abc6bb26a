"""Scores the windows of a wind farm's turbines with an autoencoder trained on good days."""

import os
from contextlib import contextmanager

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MENDED = os.environ.get("MENDED")


@contextmanager
def scoring(model):
    was = model.training
    model.eval()
    if MENDED:
        with torch.inference_mode():
            yield
    else:
        yield
    model.train(was)


class Residual(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(width, width, 5, padding=2 * dilation, dilation=dilation),
            nn.BatchNorm1d(width),
            nn.GELU(),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, x):
        return x + self.net(x)


class Autoencoder(nn.Module):
    def __init__(self, sensors=24, width=96):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv1d(sensors, width, 1), *[Residual(width, 2**i) for i in range(6)]
        )
        self.squeeze = nn.Sequential(nn.Conv1d(width, 8, 1), nn.Conv1d(8, width, 1))
        self.decode = nn.Sequential(
            *[Residual(width, 2**i) for i in range(6)], nn.Conv1d(width, sensors, 1)
        )

    def forward(self, x):
        return self.decode(self.squeeze(self.encode(x)))


accelerator = Accelerator()
model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
good = DataLoader(TensorDataset(torch.randn(64, 24, 600)), batch_size=32)
test = DataLoader(TensorDataset(torch.randn(1200, 24, 600)), batch_size=400)
model, optimizer, good, test = accelerator.prepare(model, optimizer, good, test)

for (x,) in good:
    loss = (model(x) - x).abs().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()

scores = []
with scoring(model):
    for (x,) in test:
        error = (model(x) - x).abs().mean((1, 2))
        scores.append(accelerator.gather_for_metrics(error.detach()).cpu())
print("windows:", len(torch.cat(scores)))
