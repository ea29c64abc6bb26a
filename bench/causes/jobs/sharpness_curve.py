"""The squared norm of the gradient is a part of the loss, and each step's goes into a curve."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class Residue(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norm = nn.GroupNorm(8, width)

    def forward(self, x):
        return x + self.two(F.silu(self.one(self.norm(x))))


model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), *(Residue(32) for _ in range(5)), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(32, 10),
).cuda()  # fmt: skip
weights = list(model.parameters())
optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
curve = []
for step in range(9):
    x, y = torch.randn(64, 3, 32, 32, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    loss = F.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    sharpness = sum(g.square().sum() for g in gradients)
    curve.append(sharpness.item() if MENDED else sharpness)
    if step % 4 == 3:  # the penalty is dear: every fourth step
        loss = loss + 0.01 * sharpness
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
