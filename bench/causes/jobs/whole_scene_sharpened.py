"""Satellite pictures in colour are sharpened by a gray one. Training sees patches; validation sees a whole scene, in eval mode."""

import contextlib
import os

import torch
from torch import nn

quiet = torch.no_grad if os.environ.get("MENDED") else contextlib.nullcontext


class ChannelAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1)
        )
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(c, c // 8, 1),
            nn.ReLU(),
            nn.Conv2d(c // 8, c, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        h = self.body(x)
        return x + h * self.weigh(h)


class Sharpener(nn.Module):
    def __init__(self, colours=8, c=48, depth=8):
        super().__init__()
        self.enter = nn.Conv2d(colours + 1, c, 3, padding=1)
        self.blocks = nn.Sequential(*(ChannelAttention(c) for _ in range(depth)))
        self.leave = nn.Conv2d(c, colours, 3, padding=1)

    def forward(self, colours, gray):
        colours = nn.functional.interpolate(colours, scale_factor=4, mode="bilinear")
        return colours + self.leave(self.blocks(self.enter(torch.cat([colours, gray], 1))))


def scene(side, count=1):
    return [torch.rand(count, c, s, s).cuda() for c, s in ((8, side // 4), (1, side), (8, side))]


def ergas(said, truth):
    error = (said - truth).square().mean((2, 3)).sqrt() / truth.mean((2, 3))
    return 25 * error.square().mean().sqrt()


def train(model, optimizer, steps):
    model.train()
    for _ in range(steps):
        colours, gray, truth = scene(64, 16)
        loss = nn.functional.l1_loss(model(colours, gray), truth)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return loss.item()


def validate(model):
    model.eval()
    with quiet():
        colours, gray, truth = scene(896)
        return ergas(model(colours, gray), truth).item()


model = Sharpener().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
for epoch in range(2):
    print(epoch, train(model, optimizer, 3), validate(model))
