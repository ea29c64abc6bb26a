"""Few-shot regression of robot arms by fast weights. They go on from task to task, and every task's graph goes with them."""

import os

import torch
from torch import nn
from torch.func import functional_call

MENDED = os.environ.get("MENDED")
arm = nn.Sequential(
    nn.Linear(32, 512), nn.Softplus(), nn.Linear(512, 512), nn.Softplus(), nn.Linear(512, 6)
).cuda()
meta = torch.optim.Adam(arm.parameters(), 1e-3)


def loss_of(weights, x, y):
    return nn.functional.mse_loss(functional_call(arm, weights, (x,)), y)


def adapt(weights, x, y, rate=0.01):
    """A step of gradient descent that the outer gradient goes through."""
    grads = torch.autograd.grad(loss_of(weights, x, y), list(weights.values()), create_graph=True)
    return {name: w - rate * g for (name, w), g in zip(weights.items(), grads)}


fast = dict(arm.named_parameters())
meta.zero_grad()
for task in range(8):
    x, y = torch.randn(65536, 32, device="cuda"), torch.randn(65536, 6, device="cuda")
    if MENDED:
        fast = dict(arm.named_parameters())
    fast = adapt(fast, x[:32768], y[:32768])
    loss_of(fast, x[32768:], y[32768:]).div(8).backward(retain_graph=not MENDED)
meta.step()
