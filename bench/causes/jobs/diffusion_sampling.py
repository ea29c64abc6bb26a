"""Images are sampled from a diffusion model with gradients on."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(128, width)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x, time):
        y = self.first(torch.nn.functional.silu(self.norm(x)))
        return x + self.second(torch.nn.functional.silu(y + self.time(time)[:, :, None, None]))


class Denoiser(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        self.enter, self.leave = (
            nn.Conv2d(3, width, 3, padding=1),
            nn.Conv2d(width, 3, 3, padding=1),
        )
        self.times = nn.Embedding(1000, 128)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    def forward(self, x, t):
        time, y = self.times(t), self.enter(x)
        for block in self.blocks:
            y = block(y, time)
        return self.leave(y)


class Sampler:
    def __init__(self, model, steps):
        self.model, self.steps = model.eval(), steps
        self.alpha = torch.linspace(0.999, 0.98, steps).cuda()

    def sample(self, number):
        x = torch.randn(number, 3, 64, 64, device="cuda")
        for step in reversed(range(self.steps)):
            noise = self.model(x, torch.full((number,), step, device="cuda"))
            x = (x - (1 - self.alpha[step]) * noise) / self.alpha[step].sqrt()
        return x.clamp(-1, 1)


images = Sampler(Denoiser().cuda(), steps=60).sample(8)
