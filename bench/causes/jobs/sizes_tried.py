"""A search tries networks from wide to wider. What ran before stays in the closures that the search keeps for the winner."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


def trial(width):
    """Trains a network; gives its loss and how to go on with it."""
    with torch.device("cuda"):
        net = nn.Sequential(
            nn.Linear(128, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )
    optimizer = torch.optim.Adam(net.parameters())

    def step():
        x = torch.randn(256, 128, device="cuda")
        loss = nn.functional.mse_loss(net(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    for _ in range(3):
        loss = step()
    return loss, step


def search(widths):
    tried = []
    for width in widths:
        loss, go_on = trial(width)
        tried.append((loss, width) if MENDED else (loss, width, go_on))
    return min(tried)[1]


print(search(range(1024, 2700, 128)))
