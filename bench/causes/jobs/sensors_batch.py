"""Fabric trains a forecaster that treats each sensor of a batch as a sequence of its own."""

import os

import torch
from lightning.fabric import Fabric
from torch import nn

MENDED = os.environ.get("MENDED")
SENSORS, HISTORY, HORIZON, PATCH, STRIDE = 321, 336, 96, 16, 8


class PatchForecaster(nn.Module):
    def __init__(self, width=128, depth=3):
        super().__init__()
        count = (HISTORY - PATCH) // STRIDE + 1
        self.embed = nn.Linear(PATCH, width)
        self.place = nn.Parameter(torch.zeros(count, width))
        layer = nn.TransformerEncoderLayer(width, 8, 256, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(count * width, HORIZON)

    def forward(self, series):
        patches = series.transpose(1, 2).flatten(0, 1).unfold(-1, PATCH, STRIDE)
        found = self.encoder(self.embed(patches) + self.place)
        return self.head(found.flatten(1)).view(len(series), SENSORS, HORIZON).transpose(1, 2)


fabric = Fabric(accelerator="cuda", devices=1)
model = PatchForecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
model, optimizer = fabric.setup(model, optimizer)
series = torch.randn(3000, SENSORS)
batch = 4 if MENDED else 24
for step in range(4):
    starts = torch.randint(0, 3000 - HISTORY - HORIZON, (batch,)).tolist()
    past = fabric.to_device(torch.stack([series[s : s + HISTORY] for s in starts]))
    future = fabric.to_device(
        torch.stack([series[s + HISTORY : s + HISTORY + HORIZON] for s in starts])
    )
    loss = nn.functional.mse_loss(model(past), future)
    optimizer.zero_grad()
    fabric.backward(loss)
    optimizer.step()
