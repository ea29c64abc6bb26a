"""Depth, normals and objects of kitchens from one encoder; PCGrad, weights by the rates of descent."""

import os

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

MENDED = os.environ.get("MENDED")


class Kitchen(nn.Module):
    def __init__(self):
        super().__init__()
        r = torchvision.models.resnet18(num_classes=2)
        self.encoder = nn.Sequential(
            r.conv1, r.bn1, nn.ReLU(), r.maxpool, r.layer1, r.layer2, r.layer3
        )
        self.heads = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(256, 64, 3, padding=1),
                nn.ReLU(),
                nn.Upsample(scale_factor=4, mode="bilinear"),
                nn.Conv2d(64, channels, 3, padding=1),
            )
            for channels in (1, 3, 14)
        )

    def forward(self, x):
        z = self.encoder(x)
        return [head(z) for head in self.heads]


def project(gradients):
    merged = []
    for i, g in enumerate(gradients):
        g = g.clone()
        for j, other in enumerate(gradients):
            if i != j:
                overlap = torch.dot(g, other).clamp(max=0)
                g -= overlap / (other.norm() ** 2 + 1e-12) * other
        merged.append(g)
    return sum(merged)


model = Kitchen().cuda()
shared = list(model.encoder.parameters())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []
for step in range(16):
    image = torch.randn(12, 3, 192, 192, device="cuda")
    depth = torch.rand(12, 1, 48, 48, device="cuda")
    normals = F.normalize(torch.randn(12, 3, 48, 48, device="cuda"), dim=1)
    objects = torch.randint(0, 14, (12, 48, 48), device="cuda")
    d, n, o = model(image)
    losses = [
        F.l1_loss(d, depth),
        1 - F.cosine_similarity(n, normals, dim=1).mean(),
        F.cross_entropy(o, objects),
    ]
    weights = [1.0, 1.0, 1.0]
    if len(history) > 1:
        rates = torch.tensor(history[-1]) / torch.tensor(history[-2])
        weights = 3 * torch.softmax(rates / 2, 0)
    gradients = []
    for weight, loss in zip(weights, losses):
        optimizer.zero_grad()
        (weight * loss).backward(retain_graph=True)
        gradients.append(torch.cat([p.grad.flatten() for p in shared]))
    optimizer.zero_grad()
    sum(losses).backward(retain_graph=not MENDED)
    merged, at = project(gradients), 0
    for p in shared:
        p.grad.copy_(merged[at : at + p.numel()].view_as(p))
        at += p.numel()
    optimizer.step()
    history.append([loss.item() for loss in losses] if MENDED else losses)
