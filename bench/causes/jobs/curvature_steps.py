"""A Hessian-aware optimizer: gradients are made with their graphs, and zeroed in place, so each keeps the last one's."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class CurvatureSGD:
    """Steps scaled by Hutchinson's estimate of the diagonal of the Hessian."""

    def __init__(self, params, lr=0.05, eps=1e-3):
        self.params, self.lr, self.eps = list(params), lr, eps

    def zero(self):
        for p in self.params:
            if MENDED:
                p.grad = None
            elif p.grad is not None:
                p.grad.data.zero_()

    def step(self):
        grads = [p.grad for p in self.params]
        signs = [torch.randint_like(g, 0, 2) * 2 - 1 for g in grads]
        products = torch.autograd.grad(grads, self.params, signs, retain_graph=True)
        for p, z, hz in zip(self.params, signs, products):
            p.data.sub_(self.lr * p.grad.data / ((z * hz).abs() + self.eps))


net = nn.Sequential(
    nn.Conv2d(1, 24, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(24, 48, 5, padding=2),
    nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48 * 49, 128), nn.Tanh(), nn.Linear(128, 10),
).cuda()  # fmt: skip
optimizer = CurvatureSGD(net.parameters())
criterion = nn.CrossEntropyLoss()
for step in range(12):
    digits = torch.randn(384, 1, 28, 28, device="cuda")
    labels = torch.randint(0, 10, (384,), device="cuda")
    optimizer.zero()
    loss = criterion(net(digits), labels)
    loss.backward(create_graph=True)
    optimizer.step()
