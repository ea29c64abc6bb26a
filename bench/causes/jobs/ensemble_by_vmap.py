"""All members of an ensemble learn at once, by vmap over stacked weights. There are too many members."""

import os

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import mse_loss

MEMBERS = 24 if os.environ.get("MENDED") else 160

member = torch.nn.Sequential(
    torch.nn.Linear(1024, 1024),
    torch.nn.Mish(),
    torch.nn.Linear(1024, 1024),
    torch.nn.Mish(),
    torch.nn.Linear(1024, 1),
).to("meta")


def start(shape):
    return torch.randn(MEMBERS, *shape, device="cuda").mul_(shape[-1] ** -0.5)


def error(weights, x, y):
    return mse_loss(functional_call(member, weights, (x,)).squeeze(-1), y)


weights = {name: start(p.shape) for name, p in member.named_parameters()}
slopes = vmap(grad(error))
for step in range(4):
    x, y = torch.randn(MEMBERS, 16, 1024, device="cuda"), torch.randn(MEMBERS, 16, device="cuda")
    for name, slope in slopes(weights, x, y).items():
        weights[name].sub_(slope, alpha=0.01)
