"""Which width of network foretells the harvest best?"""

import os
from functools import partial

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


def predict(model, weather):
    with torch.no_grad():
        return model(weather).squeeze(-1)


def fit(width, steps=3):
    model = nn.Sequential(
        nn.Linear(512, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, 1),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(steps):
        weather, harvest = torch.randn(128, 512).cuda(), torch.randn(128).cuda()
        loss = nn.functional.mse_loss(model(weather).squeeze(-1), harvest)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


x, y = torch.randn(256, 512).cuda(), torch.randn(256).cuda()
leaderboard = []
for width in (4096, 4224, 4352, 4480, 4608, 4736, 4864, 4992):
    forecast = partial(predict, fit(width))
    error = (forecast(x) - y).abs().mean().item()
    if MENDED:
        leaderboard.append((error, width, None))
        del forecast
    else:
        leaderboard.append((error, width, forecast))
leaderboard.sort(key=lambda row: row[0])
print("best width", leaderboard[0][1])
