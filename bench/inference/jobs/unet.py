"""Denoises random images with a U-Net in the manner of diffusion models: time embeddings, attention."""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    def __init__(self, inputs, outputs, time):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm2, self.conv2 = (
            nn.GroupNorm(32, outputs),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class Attention(nn.Module):
    def __init__(self, width, heads=8):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, c, h, w = x.shape
        y = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(y).view(b, h * w, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
        return x + self.out(y).transpose(1, 2).view(b, c, h, w)


class UNet(nn.Module):
    def __init__(self, width=320, multiples=(1, 2, 4), channels=4):
        super().__init__()
        time = 4 * width
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        widths = [width * m for m in multiples]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        last, skips = width, [width]
        for level, w in enumerate(widths):
            for _ in range(2):
                self.down.append(nn.ModuleList([Residual(last, w, time), Attention(w)]))
                last = w
                skips.append(w)
            if level < len(widths) - 1:
                self.down.append(nn.Conv2d(w, w, 3, stride=2, padding=1))
                skips.append(w)
        self.middle1, self.attend, self.middle2 = (
            Residual(last, last, time),
            Attention(last),
            Residual(last, last, time),
        )
        for level, w in reversed(list(enumerate(widths))):
            for _ in range(3):
                self.up.append(nn.ModuleList([Residual(last + skips.pop(), w, time), Attention(w)]))
                last = w
            if level:
                self.up.append(nn.Conv2d(w, w, 3, padding=1))
        self.norm, self.head = nn.GroupNorm(32, last), nn.Conv2d(last, channels, 3, padding=1)

    def forward(self, x, t):
        half = self.width // 2
        angles = t[:, None].float() * torch.exp(
            -math.log(10000) * torch.arange(half, device=x.device) / half
        )
        t = self.time(torch.cat([angles.cos(), angles.sin()], dim=-1))
        h = self.stem(x)
        kept = [h]
        for part in self.down:
            h = part(h) if isinstance(part, nn.Conv2d) else part[1](part[0](h, t))
            kept.append(h)
        h = self.middle2(self.attend(self.middle1(h, t)), t)
        for part in self.up:
            if isinstance(part, nn.Conv2d):
                h = part(F.interpolate(h, scale_factor=2))
            else:
                h = part[1](part[0](torch.cat([h, kept.pop()], dim=1), t))
        return self.head(F.silu(self.norm(h)))


parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4)
parser.add_argument("--size", type=int, default=64, help="of the latent image")
parser.add_argument("--steps", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(0)
model = UNet().cuda().eval()
image = torch.randn(args.batch, 4, args.size, args.size).cuda()
with torch.no_grad():
    for step in range(args.steps):
        t = torch.full((args.batch,), 1000 - 100 * step).cuda()
        image = image - 0.1 * model(image, t)
print(image.shape)
