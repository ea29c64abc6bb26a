"""A copy of a diffusion model's encoder learns to follow sketches, next to the model itself. All of it is in single precision."""

import copy
import os

import torch
import torch.nn.functional as F
from torch import nn

PRECISION = torch.bfloat16 if os.environ.get("MENDED") else torch.float32


class Block(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, i), nn.SiLU(), nn.Conv2d(i, o, 3, padding=1))
        self.second = nn.Sequential(nn.GroupNorm(8, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1))
        self.time = nn.Linear(256, o)
        self.skip = nn.Conv2d(i, o, 1)

    def forward(self, x, t):
        h = self.first(x) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.second(h)


class Encoder(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.enter = nn.Conv2d(4, widths[0], 3, padding=1)
        self.blocks = nn.ModuleList(Block(a, b) for a, b in zip((widths[0], *widths), widths))

    def forward(self, x, t, hint=None):
        x, kept = self.enter(x), []
        if hint is not None:
            x = x + hint
        for block in self.blocks:
            x = block(x, t)
            kept.append(x)
            x = F.avg_pool2d(x, 2)
        return x, kept


class UNet(nn.Module):
    def __init__(self, widths=(512, 1024, 2048, 2048)):
        super().__init__()
        self.encoder = Encoder(widths)
        self.middle = Block(widths[-1], widths[-1])
        back = (*widths[::-1], widths[0])
        self.decoder = nn.ModuleList(Block(a, b) for a, b in zip(back, back[1:]))
        self.out = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, x, t, extra):
        x, kept = self.encoder(x, t)
        x = self.middle(x, t)
        for block in self.decoder:
            x = F.interpolate(x, scale_factor=2) + kept.pop() + extra.pop()
            x = block(x, t)
        return self.out(x)


class Control(nn.Module):
    def __init__(self, unet, widths=(512, 1024, 2048, 2048)):
        super().__init__()
        self.hint = nn.Conv2d(1, widths[0], 3, padding=1)
        self.encoder = copy.deepcopy(unet.encoder)
        self.zeros = nn.ModuleList(nn.Conv2d(w, w, 1) for w in widths)

    def forward(self, x, t, sketch):
        _, kept = self.encoder(x, t, self.hint(sketch))
        return [zero(k) for zero, k in zip(self.zeros, kept)]


torch.set_default_dtype(PRECISION)
with torch.device("cuda"):
    unet = UNet().requires_grad_(False)
    control = Control(unet).requires_grad_(True)
optimizer = torch.optim.SGD(control.parameters(), lr=1e-4)
for _ in range(2):
    noisy, noise = torch.randn(2, 1, 4, 16, 16, device="cuda")
    sketch, t = torch.rand(1, 1, 16, 16, device="cuda"), torch.randn(1, 256, device="cuda")
    loss = F.mse_loss(unet(noisy, t, control(noisy, t, sketch)), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
