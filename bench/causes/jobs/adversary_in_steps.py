"""Pictures are made adversarial in many small steps. The steps are differentiable by mistake, so all of them stay."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


def net():
    layers = []
    for i, o, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2)):
        layers += [nn.Conv2d(i, o, 3, stride, 1), nn.GroupNorm(8, o), nn.SiLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def attack(model, x, y, steps=10, size=2 / 255, most=8 / 255):
    """Projected gradient ascent."""
    moved = x + torch.empty_like(x).uniform_(-most, most)
    moved.requires_grad_()
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(moved), y)
        (grad,) = torch.autograd.grad(loss, moved, create_graph=not MENDED)
        moved = moved + size * grad.tanh()
        moved = x + (moved - x).clamp(-most, most)
        if MENDED:
            moved = moved.detach().requires_grad_()
    return moved


model = net().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, nesterov=True, momentum=0.9)
for _ in range(2):
    x, y = torch.rand(48, 3, 48, 48, device="cuda"), torch.randint(0, 10, (48,), device="cuda")
    loss = nn.functional.cross_entropy(model(attack(model, x, y)), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
