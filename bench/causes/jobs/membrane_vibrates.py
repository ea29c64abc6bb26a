"""A physics-informed network for the wave equation of a membrane."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
torch.manual_seed(1)
device = "cuda"

net = nn.Sequential(
    nn.Linear(3, 200), nn.Tanh(),
    nn.Linear(200, 200), nn.Tanh(),
    nn.Linear(200, 200), nn.Tanh(),
    nn.Linear(200, 200), nn.Tanh(),
    nn.Linear(200, 1),
).to(device)  # fmt: skip


def derivative(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def residual(p, c=1.3):
    p = p.requires_grad_()
    u = net(p)
    first = derivative(u, p)
    second = [derivative(first[:, i], p)[:, i] for i in range(3)]
    return second[2] - c**2 * (second[0] + second[1])


def on_the_rim(n):
    angle = 2 * torch.pi * torch.rand(n, device=device)
    return torch.stack([angle.cos(), angle.sin(), torch.rand(n, device=device)], 1)


mesh = torch.rand(5_000, 3, device=device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
history = []
for epoch in range(14):
    for _ in range(2):
        inside = torch.rand(3000, 3, device=device)
        loss = residual(inside).pow(2).mean() + 10 * net(on_the_rim(500)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    error = residual(mesh.clone()).abs().mean()
    history.append(error.item() if MENDED else error)
print("epochs:", len(history))
