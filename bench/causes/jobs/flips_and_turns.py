"""Fields from the air, by a network that looks at each tile in eight ways and takes the mean. An evaluation script."""

import os
from contextlib import nullcontext

import torch
import torch.nn as nn
import torch.nn.functional as F

quiet = torch.no_grad if os.environ.get("MENDED") else nullcontext


def double(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(),
        nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(),
    )  # fmt: skip


class FieldNet(nn.Module):
    def __init__(self, bands=6, crops=9, c=24):
        super().__init__()
        self.d1, self.d2, self.d3 = double(bands, c), double(c, 2 * c), double(2 * c, 4 * c)
        self.u2, self.u1 = double(6 * c, 2 * c), double(3 * c, c)
        self.head = nn.Conv2d(c, crops, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        b = self.u2(torch.cat([b, F.interpolate(c, scale_factor=2)], 1))
        a = self.u1(torch.cat([a, F.interpolate(b, scale_factor=2)], 1))
        return self.head(a)


class EightWays(nn.Module):
    """All turns and flips of a square; each answer is turned back."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        votes = 0
        for turn in range(4):
            for flip in (False, True):
                y = torch.rot90(x, turn, (2, 3))
                y = self.net(y.flip(3) if flip else y).softmax(1)
                y = y.flip(3) if flip else y
                votes = votes + torch.rot90(y, -turn, (2, 3))
        return votes / 8


class Confusion:
    def __init__(self, classes):
        self.classes, self.table = classes, torch.zeros(classes, classes, dtype=torch.long)

    def add(self, predicted, truth):
        both = truth.flatten() * self.classes + predicted.flatten()
        self.table += torch.bincount(both, minlength=self.classes**2).view(self.table.shape)

    def overlap(self):
        hit = self.table.diag().float()
        return (hit / (self.table.sum(0) + self.table.sum(1) - hit).clamp(min=1)).mean().item()


def tiles(count=4, batch=2, side=256):
    g = torch.Generator().manual_seed(12)
    for _ in range(count):
        image = torch.rand(batch, 6, side, side, generator=g)
        yield image, torch.randint(9, (batch, side, side), generator=g)


model = EightWays(FieldNet()).to("cuda")
model.eval()
confusion = Confusion(9)
with quiet():
    for image, truth in tiles():
        predicted = model(image.to("cuda")).argmax(1)
        confusion.add(predicted.cpu(), truth)
print(f"mean overlap {confusion.overlap():.3f}")
