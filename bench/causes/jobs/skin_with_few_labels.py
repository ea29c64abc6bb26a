"""MixMatch on photographs of skin: few labels, many photographs without."""

import os
from contextlib import nullcontext

import torch
import torch.nn.functional as F
import torchvision

MENDED = os.environ.get("MENDED")
KINDS, VIEWS, T = 7, 4, 0.5


def augment(x):
    if torch.rand(()) < 0.5:
        x = x.flip(-1)
    return x + 0.05 * torch.randn_like(x)


def sharpen(p):
    p = p ** (1 / T)
    return p / p.sum(1, keepdim=True)


def guess(model, views):
    with torch.no_grad() if MENDED else nullcontext():
        p = sum(torch.softmax(model(v), 1) for v in views) / len(views)
    return sharpen(p.detach())


def mixup(x, y, alpha=0.75):
    lam = torch.distributions.Beta(alpha, alpha).sample().item()
    lam = max(lam, 1 - lam)
    order = torch.randperm(len(x), device=x.device)
    return lam * x + (1 - lam) * x[order], lam * y + (1 - lam) * y[order]


model = torchvision.models.resnet18(num_classes=KINDS).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
for step in range(3):
    x = torch.randn(16, 3, 128, 128, device="cuda")
    y = F.one_hot(torch.randint(0, KINDS, (16,), device="cuda"), KINDS).float()
    u = torch.randn(96, 3, 128, 128, device="cuda")
    q = guess(model, [augment(u) for _ in range(VIEWS)])
    inputs, targets = mixup(torch.cat([augment(x), augment(u[:16])]), torch.cat([y, q[:16]]))
    logits = model(inputs)
    supervised = -(targets[:16] * F.log_softmax(logits[:16], 1)).sum(1).mean()
    consistent = F.mse_loss(torch.softmax(logits[16:], 1), targets[16:])
    loss = supervised + 75 * consistent
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
