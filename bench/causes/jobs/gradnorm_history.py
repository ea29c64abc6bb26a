"""Tasks are weighted by their gradients, so the graph is retained, and the history keeps it."""

import os

import torch
import torchvision
from torch import nn

MENDED = os.environ.get("MENDED")

trunk = nn.Sequential(
    *torchvision.models.mnasnet1_0().layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()
)
shared = nn.Linear(1280, 256)
heads = nn.ModuleList(nn.Linear(256, classes) for classes in (10, 40, 7))
network = nn.ModuleList([trunk, shared, heads]).cuda()
weights = torch.ones(3, device="cuda", requires_grad=True)
optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
of_weights = torch.optim.Adam([weights], lr=1e-2)
history = []
for step in range(16):
    images = torch.randn(16, 3, 128, 128, device="cuda")
    found = shared(trunk(images)).relu()
    losses = torch.stack([
        nn.functional.cross_entropy(
            head(found), torch.randint(0, head.out_features, (16,), device="cuda")
        )
        for head in heads
    ])  # fmt: skip
    history.append(losses.detach() if MENDED else losses)
    optimizer.zero_grad()
    (weights.detach() * losses).sum().backward(retain_graph=True)
    norms = torch.stack([
        torch.autograd.grad(loss, shared.weight, retain_graph=True)[0].norm() for loss in losses
    ])  # fmt: skip
    target = norms.mean() * (losses.detach() / history[0].detach()) ** 0.5
    of_weights.zero_grad()
    (weights * norms - target).abs().sum().backward()
    of_weights.step()
    optimizer.step()
