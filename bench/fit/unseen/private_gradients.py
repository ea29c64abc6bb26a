"""Differential privacy: a gradient of each sample by vmap, clipped, summed and given noise."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad_and_value, vmap

CLIP, NOISE, BATCH = 1.0, 1.1, 96

model = nn.Sequential(
    nn.Conv2d(1, 64, 5, 2, 2), nn.GroupNorm(8, 64), nn.ReLU(),
    nn.Conv2d(64, 128, 3, 2, 1), nn.GroupNorm(8, 128), nn.ReLU(),
    nn.Conv2d(128, 128, 3, 2, 1), nn.ReLU(),
    nn.Flatten(), nn.Linear(128 * 16, 512), nn.ReLU(), nn.Linear(512, 10),
).cuda()  # fmt: skip
params = {k: v.detach() for k, v in model.named_parameters()}


def loss_of_one(params, x, y):
    return F.cross_entropy(functional_call(model, params, (x.unsqueeze(0),)), y.unsqueeze(0))


per_sample = vmap(grad_and_value(loss_of_one), in_dims=(None, 0, 0))
optimizer = torch.optim.SGD(params.values(), lr=0.1, momentum=0.9)
for step in range(5):
    x = torch.rand(BATCH, 1, 32, 32, device="cuda")
    y = torch.randint(10, (BATCH,), device="cuda")
    grads, losses = per_sample(params, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
    factor = (CLIP / (norms + 1e-6)).clamp(max=1.0)
    for k, p in params.items():
        total = torch.einsum("b,b...->...", factor, grads[k])
        p.grad = (total + NOISE * CLIP * torch.randn_like(p)) / BATCH
    optimizer.step()
    print(step, losses.mean().item())
