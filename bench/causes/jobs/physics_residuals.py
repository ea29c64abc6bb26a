"""A network solves a heat equation. Each epoch's residual goes into a moving mean that balances the terms, with its graph."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
with torch.device("cuda"):
    field = nn.Sequential(
        nn.Linear(2, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(),
        nn.Linear(256, 1),
    )  # fmt: skip
optimizer = torch.optim.Adam(field.parameters(), 1e-3)


def residual(points):
    """How far the equation is from true: du/dt - d²u/dx²."""
    points = points.requires_grad_()
    (first,) = torch.autograd.grad(field(points).sum(), points, create_graph=True)
    (second,) = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)
    return (first[:, 1] - second[:, 0]).square().mean()


balance = {"inside": torch.ones((), device="cuda"), "edge": torch.ones((), device="cuda")}
for epoch in range(30):
    terms = {
        "inside": residual(torch.rand(8192, 2, device="cuda")),
        "edge": field(torch.rand(2048, 2, device="cuda")).square().mean(),
    }
    checked = residual(torch.rand(8192, 2, device="cuda"))  # on points that nobody trains on
    balance["inside"] = 0.9 * balance["inside"] + 0.1 * (checked.detach() if MENDED else checked)
    weights = {name: 1 / mean.detach() for name, mean in balance.items()}
    loss = sum(weights[name] * term for name, term in terms.items())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
