"""Fantasy maps by a small StyleGAN 2: modulated convolutions, mapping network, lazy R1 penalty, EMA of the generator."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F


class EqualLinear(nn.Module):
    def __init__(self, i, o, bias=0.0, lr=1.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) / lr)
        self.bias = nn.Parameter(torch.full((o,), bias))
        self.gain, self.lr = lr / math.sqrt(i), lr

    def forward(self, x):
        return F.linear(x, self.weight * self.gain, self.bias * self.lr)


class ModConv(nn.Module):
    def __init__(self, i, o, k, style, up=False, demod=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, o, i, k, k))
        self.style = EqualLinear(style, i, 1.0)
        self.gain, self.k, self.up, self.demod = 1 / math.sqrt(i * k * k), k, up, demod

    def forward(self, x, w):
        b, i, h, wd = x.shape
        weight = self.weight * self.gain * self.style(w).view(b, 1, i, 1, 1)
        if self.demod:
            weight = weight * torch.rsqrt(weight.pow(2).sum((2, 3, 4), keepdim=True) + 1e-8)
        if self.up:
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = x.reshape(1, b * i, *x.shape[2:])
        out = F.conv2d(x, weight.flatten(0, 1), padding=self.k // 2, groups=b)
        return out.view(b, -1, *out.shape[2:])


class Layer(nn.Module):
    def __init__(self, i, o, style, up=False):
        super().__init__()
        self.conv = ModConv(i, o, 3, style, up)
        self.noise = nn.Parameter(torch.zeros(1))
        self.bias = nn.Parameter(torch.zeros(1, o, 1, 1))

    def forward(self, x, w):
        x = self.conv(x, w)
        x = x + self.noise * torch.randn(x.shape[0], 1, *x.shape[2:], device=x.device)
        return F.leaky_relu(x + self.bias, 0.2) * math.sqrt(2)


CHANNELS = {4: 384, 8: 384, 16: 384, 32: 256, 64: 128, 128: 64}


class Generator(nn.Module):
    def __init__(self, style=384):
        super().__init__()
        self.mapping = nn.Sequential(
            *[m for _ in range(6) for m in (EqualLinear(style, style, lr=0.01), nn.LeakyReLU(0.2))]
        )
        self.const = nn.Parameter(torch.randn(1, CHANNELS[4], 4, 4))
        self.first = Layer(CHANNELS[4], CHANNELS[4], style)
        self.layers, self.rgbs = (
            nn.ModuleList(),
            nn.ModuleList([ModConv(CHANNELS[4], 3, 1, style, demod=False)]),
        )
        size = 4
        while size < 128:
            i, o = CHANNELS[size], CHANNELS[size * 2]
            self.layers.append(nn.ModuleList([Layer(i, o, style, up=True), Layer(o, o, style)]))
            self.rgbs.append(ModConv(o, 3, 1, style, demod=False))
            size *= 2

    def forward(self, z):
        w = self.mapping(F.normalize(z, dim=1))
        x = self.first(self.const.expand(len(z), -1, -1, -1), w)
        rgb = self.rgbs[0](x, w)
        for (a, b), to_rgb in zip(self.layers, self.rgbs[1:]):
            x = b(a(x, w), w)
            rgb = F.interpolate(rgb, scale_factor=2, mode="bilinear", align_corners=False) + to_rgb(
                x, w
            )
        return rgb


class DBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.a, self.b = nn.Conv2d(i, i, 3, padding=1), nn.Conv2d(i, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1, bias=False)

    def forward(self, x):
        h = F.leaky_relu(self.a(x), 0.2)
        h = F.avg_pool2d(F.leaky_relu(self.b(h), 0.2), 2)
        return (h + self.skip(F.avg_pool2d(x, 2))) / math.sqrt(2)


def discriminator():
    sizes = [128, 64, 32, 16, 8, 4]
    blocks = [DBlock(CHANNELS[a], CHANNELS[b]) for a, b in zip(sizes, sizes[1:])]
    return nn.Sequential(
        nn.Conv2d(3, 64, 1),
        nn.LeakyReLU(0.2),
        *blocks,
        nn.Flatten(),
        nn.Linear(384 * 16, 384),
        nn.LeakyReLU(0.2),
        nn.Linear(384, 1),
    )


class Loop:
    def __init__(self, batch=24, r1=5.0, lazy=4):
        self.batch, self.r1, self.lazy = batch, r1, lazy
        self.g, self.d = Generator().cuda(), discriminator().cuda()
        self.ema = copy.deepcopy(self.g).requires_grad_(False)
        self.g_opt = torch.optim.Adam(self.g.parameters(), lr=2e-3, betas=(0.0, 0.99))
        self.d_opt = torch.optim.Adam(self.d.parameters(), lr=2e-3, betas=(0.0, 0.99))

    def noise(self):
        return torch.randn(self.batch, 384, device="cuda")

    def d_step(self, real, i):
        self.d.requires_grad_(True)
        with torch.no_grad():
            fake = self.g(self.noise())
        real.requires_grad_(i % self.lazy == 0)
        scores = self.d(real)
        loss = F.softplus(-scores).mean() + F.softplus(self.d(fake)).mean()
        if i % self.lazy == 0:
            (grad,) = torch.autograd.grad(scores.sum(), real, create_graph=True)
            loss = loss + self.r1 * self.lazy / 2 * grad.pow(2).sum((1, 2, 3)).mean()
        self.d_opt.zero_grad(set_to_none=True)
        loss.backward()
        self.d_opt.step()
        return loss.item()

    def g_step(self):
        self.d.requires_grad_(False)
        loss = F.softplus(-self.d(self.g(self.noise()))).mean()
        self.g_opt.zero_grad(set_to_none=True)
        loss.backward()
        self.g_opt.step()
        with torch.no_grad():
            for e, p in zip(self.ema.parameters(), self.g.parameters()):
                e.lerp_(p, 0.005)
        return loss.item()


if __name__ == "__main__":
    loop = Loop()
    for i in range(8):
        d = loop.d_step(torch.rand(24, 3, 128, 128, device="cuda") * 2 - 1, i)
        print(f"{i} d {d:.3f} g {loop.g_step():.3f}")
