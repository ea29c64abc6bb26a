"""Learns the step sizes of SGD by hypergradients on a validation batch (online)."""

import os

import torch
import torch.nn.functional as F

MENDED = os.environ.get("MENDED")
torch.manual_seed(0)
device = "cuda"
sizes = [256, 768, 768, 768, 10]

weights = [
    (torch.randn(a, b, device=device) / a**0.5).requires_grad_() for a, b in zip(sizes, sizes[1:])
]
log_rates = torch.full((len(weights),), -4.0, device=device, requires_grad=True)
outer = torch.optim.Adam([log_rates], lr=0.05)


def network(weights, x):
    for w in weights[:-1]:
        x = torch.tanh(x @ w)
    return x @ weights[-1]


def batch(n=4096):
    return torch.randn(n, 256, device=device), torch.randint(0, 10, (n,), device=device)


for step in range(14):
    x, y = batch()
    loss = F.cross_entropy(network(weights, x), y)
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    rates = log_rates.exp()
    weights = [w - r * g for w, r, g in zip(weights, rates, gradients)]

    x, y = batch()
    validation = F.cross_entropy(network(weights, x), y)
    outer.zero_grad()
    if MENDED:
        validation.backward(inputs=[log_rates])
        weights = [w.detach().requires_grad_() for w in weights]
    else:
        validation.backward(inputs=[log_rates], retain_graph=True)
    outer.step()
print("steps:", step + 1)
