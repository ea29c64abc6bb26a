"""Retinas are read in two ways, as vessels and as a copy of the picture, and each step learns from one of both losses. Running means of both are kept for the log."""

import itertools
import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


def stage(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU())


class Decoder(nn.Module):
    def __init__(self, c, out):
        super().__init__()
        self.wide = nn.Sequential(stage(c, c), stage(c, c // 2))
        self.fine = nn.Sequential(stage(c // 2, c // 2), stage(c // 2, c // 4))
        self.out = nn.Conv2d(c // 4, out, 1)

    def forward(self, x):
        x = F.interpolate(self.wide(x), scale_factor=2)
        return self.out(F.interpolate(self.fine(x), scale_factor=2))


class Retina(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(3, c, 4, 4), stage(c, c), stage(c, c))
        self.vessels, self.copy = Decoder(c, 1), Decoder(c, 3)

    def losses(self, image, vessels):
        x = self.see(image)
        return {
            "vessels": F.binary_cross_entropy_with_logits(self.vessels(x), vessels),
            "copy": F.l1_loss(self.copy(x), image),
        }


class Means:
    """What the log shows: means that forget slowly."""

    def __init__(self, keep=0.95):
        self.keep, self.values = keep, {}

    def update(self, losses):
        for name, loss in losses.items():
            value = loss.item() if MENDED else loss
            old = self.values.get(name, value)
            self.values[name] = self.keep * old + (1 - self.keep) * value

    def __str__(self):
        return ", ".join(f"{name} {float(value):.3f}" for name, value in self.values.items())


model, means = Retina().cuda(), Means()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step, turn in zip(range(40), itertools.cycle(["vessels", "copy"])):
    image = torch.rand(8, 3, 160, 160, device="cuda")
    losses = model.losses(image, torch.zeros(8, 1, 160, 160, device="cuda"))
    optimizer.zero_grad()
    losses[turn].backward()
    optimizer.step()
    means.update(losses)
    if step % 20 == 19:
        print(step, means)
