"""Blurred number plates made sharp: NAFNet without activations, torch.compile, bf16, PSNR loss.

Blur is made on the fly from random motion kernels with grouped convolutions.
"""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = int(os.environ.get("JOB_STEPS", "5"))


class LayerNorm2d(nn.Module):
    def __init__(self, c, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, c, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, c, 1, 1))
        self.eps = eps

    def forward(self, x):
        mu = x.mean(1, keepdim=True)
        var = (x - mu).pow(2).mean(1, keepdim=True)
        return (x - mu) / (var + self.eps).sqrt() * self.weight + self.bias


def gate(x):
    a, b = x.chunk(2, 1)
    return a * b


class NAFBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm1, self.norm2 = LayerNorm2d(c), LayerNorm2d(c)
        self.expand = nn.Conv2d(c, 2 * c, 1)
        self.depthwise = nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c)
        self.attend = nn.Conv2d(c, c, 1)
        self.project = nn.Conv2d(c, c, 1)
        self.widen = nn.Conv2d(c, 2 * c, 1)
        self.narrow = nn.Conv2d(c, c, 1)
        self.beta = nn.Parameter(torch.zeros(1, c, 1, 1))
        self.gamma = nn.Parameter(torch.zeros(1, c, 1, 1))

    def forward(self, x):
        h = gate(self.depthwise(self.expand(self.norm1(x))))
        h = h * self.attend(h.mean((2, 3), keepdim=True))
        x = x + self.project(h) * self.beta
        return x + self.narrow(gate(self.widen(self.norm2(x)))) * self.gamma


class NAFNet(nn.Module):
    def __init__(self, width=48, enc=(1, 1, 1), middle=2, dec=(1, 1, 1)):
        super().__init__()
        self.intro = nn.Conv2d(3, width, 3, padding=1)
        self.ending = nn.Conv2d(width, 3, 3, padding=1)
        self.encoders, self.decoders = nn.ModuleList(), nn.ModuleList()
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        c = width
        for n in enc:
            self.encoders.append(nn.Sequential(*[NAFBlock(c) for _ in range(n)]))
            self.downs.append(nn.Conv2d(c, 2 * c, 2, 2))
            c *= 2
        self.middle = nn.Sequential(*[NAFBlock(c) for _ in range(middle)])
        for n in dec:
            self.ups.append(nn.Sequential(nn.Conv2d(c, 2 * c, 1, bias=False), nn.PixelShuffle(2)))
            c //= 2
            self.decoders.append(nn.Sequential(*[NAFBlock(c) for _ in range(n)]))

    def forward(self, blurred):
        x, skips = self.intro(blurred), []
        for encoder, down in zip(self.encoders, self.downs):
            x = encoder(x)
            skips.append(x)
            x = down(x)
        x = self.middle(x)
        for up, decoder, skip in zip(self.ups, self.decoders, reversed(skips)):
            x = decoder(up(x) + skip)
        return self.ending(x) + blurred


def plates(n, side=256):
    glyphs = (torch.rand(n, 1, side // 16, side // 8, device="cuda") > 0.5).float()
    sharp = F.interpolate(glyphs, (side, side)).expand(-1, 3, -1, -1) * 0.8 + 0.1
    length = torch.rand(n, 1, 1, device="cuda") * 7
    line = torch.arange(-7, 8, device="cuda").float()
    kernel = torch.exp(-(line[None, None, :] ** 2) / (1 + length**2))
    kernel = kernel * torch.exp(-(line[None, :, None] ** 2) / 1.5)
    kernel = (kernel / kernel.sum((1, 2), keepdim=True)).repeat_interleave(3, 0)[:, None]
    flat = sharp.reshape(1, 3 * n, side, side)
    blurred = F.conv2d(flat, kernel, padding=7, groups=3 * n).view_as(sharp)
    return blurred + 0.01 * torch.randn_like(blurred), sharp


def main(batch=36):
    torch.manual_seed(77)
    torch.backends.cudnn.benchmark = True
    net = NAFNet().cuda()
    compiled = torch.compile(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, betas=(0.9, 0.9), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2000, eta_min=1e-7)
    for step in range(STEPS):
        blurred, sharp = plates(batch)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            restored = compiled(blurred)
        mse = (restored.float() - sharp).square().mean((1, 2, 3))
        loss = 10 / torch.log(torch.tensor(10.0)) * torch.log(mse + 1e-8).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()
        schedule.step()
        print(f"step {step} loss {loss.item():.3f} (PSNR {-loss.item():.2f} dB)")


if __name__ == "__main__":
    main()
