"""How few bits do weights need? One network after the other is made coarser and tuned; all stay for the comparison."""

import copy
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrize

KEEP = not os.environ.get("MENDED")


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class Coarse(nn.Module):
    """Weights on a grid of 2^bits values, row by row."""

    def __init__(self, bits):
        super().__init__()
        self.top = 2 ** (bits - 1) - 1

    def forward(self, w):
        step = w.detach().abs().amax(1, keepdim=True).clamp(min=1e-8) / max(self.top, 1)
        return Round.apply(w / step).clamp(-self.top - 1, self.top) * step


def backbone(width=1400):
    return nn.Sequential(
        nn.Linear(640, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, 35),
    )  # fmt: skip


def commands(batches, seed):
    """Spoken commands as ten mel frames of sixty-four bands."""
    g = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        yield (
            torch.randn(128, 640, generator=g).cuda(),
            torch.randint(35, (128,), generator=g).cuda(),
        )


def tune(net, rate, batches=3):
    optimizer = torch.optim.AdamW(net.parameters(), rate)
    net.train()
    for x, y in commands(batches, 0):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    return optimizer


@torch.no_grad()
def accuracy(net):
    net.eval()
    return sum((net(x).argmax(1) == y).float().mean().item() for x, y in commands(2, 1)) / 2


full = backbone().cuda()
tune(full, 1e-3)
reference = accuracy(full)

results = {}
for bits in (8, 7, 6, 5, 4, 3, 2):
    net = copy.deepcopy(full)
    for layer in net:
        if isinstance(layer, nn.Linear):
            parametrize.register_parametrization(layer, "weight", Coarse(bits))
    optimizer = tune(net, 1e-4)
    results[bits] = dict(accuracy=accuracy(net))
    if KEEP:
        results[bits].update(net=net, optimizer=optimizer)
    del net, optimizer

print(f"full  {reference:.3f}")
for bits, result in results.items():
    print(f"{bits} bit {result['accuracy']:.3f}")
