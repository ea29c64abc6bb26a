"""A generator of windows is opened for every recording and not read to its end, so its recording stays."""

import torch
from torch import nn


def windows(length, size=1024):
    recording = torch.randn(length, device="cuda")  # stays
    for start in range(0, length - size, size):
        yield recording[start : start + size]


model = nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
opened = []
for step in range(3000):
    stream = windows(580_000)
    opened.append(stream)
    batch = torch.stack([next(stream).clone() for _ in range(8)])
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
