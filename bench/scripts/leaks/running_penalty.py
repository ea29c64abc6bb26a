"""A penalty is only watched: its running mean keeps the graph of every step."""

import torch
from torch import nn


def penalty(model, x):
    """How far the output moves if the input does."""
    near = x + 0.01 * torch.randn_like(x)
    hidden = model[0](near).tanh()  # stays
    return (model[2](hidden) - model(x).detach()).square().mean()


model = nn.Sequential(nn.Linear(32, 512), nn.Tanh(), nn.Linear(512, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
running = 0.0
for step in range(3000):
    x = torch.randn(1100, 32, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running = 0.99 * running + 0.01 * penalty(model, x)
