#!/usr/bin/env python
"""Breathing in, breathing out: deformable registration of lung CTs without labels (VoxelMorph, diffeomorphic, both directions)."""

import torch
import torch.nn as nn
import torch.nn.functional as F

SHAPE = (112, 128, 128)


class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(nn.Conv3d(cin, cout, 3, stride, 1), nn.LeakyReLU(0.2))


class Unet(nn.Module):
    def __init__(self, enc=(16, 32, 32, 32), dec=(32, 32, 32, 32), extra=(32, 16, 16)):
        super().__init__()
        self.down, prev = nn.ModuleList(), 2
        for c in enc:
            self.down.append(ConvBlock(prev, c, 2))
            prev = c
        skips = list(reversed((2,) + enc[:-1]))
        self.up = nn.ModuleList()
        for c, s in zip(dec, skips):
            self.up.append(ConvBlock(prev, c))
            prev = c + s
        self.extra = nn.ModuleList()
        for c in extra:
            self.extra.append(ConvBlock(prev, c))
            prev = c
        self.flow = nn.Conv3d(prev, 3, 3, padding=1)
        nn.init.normal_(self.flow.weight, 0, 1e-5)
        nn.init.zeros_(self.flow.bias)

    def forward(self, x):
        history = [x]
        for layer in self.down:
            history.append(layer(history[-1]))
        x = history.pop()
        for layer in self.up:
            x = F.interpolate(layer(x), scale_factor=2, mode="nearest")
            x = torch.cat([x, history.pop()], dim=1)
        for layer in self.extra:
            x = layer(x)
        return self.flow(x)


class Warp(nn.Module):
    def __init__(self, size):
        super().__init__()
        grid = torch.stack(torch.meshgrid(*[torch.arange(s) for s in size], indexing="ij"))
        self.register_buffer("grid", grid[None].float(), persistent=False)
        self.size = size

    def forward(self, src, flow):
        where = self.grid + flow
        scaled = [2 * where[:, i] / (s - 1) - 1 for i, s in enumerate(self.size)]
        return F.grid_sample(
            src, torch.stack(scaled[::-1], -1), align_corners=True, mode="bilinear"
        )


class VoxelMorph(nn.Module):
    def __init__(self, shape, steps=7):
        super().__init__()
        self.unet = Unet()
        self.steps = steps
        half = tuple(s // 2 for s in shape)
        self.warp_half, self.warp = Warp(half), Warp(shape)

    def exponential(self, velocity):
        v = velocity / 2**self.steps
        for _ in range(self.steps):
            v = v + self.warp_half(v, v)
        return v

    def forward(self, moving, fixed):
        v = self.unet(torch.cat([moving, fixed], 1))
        v = F.interpolate(v, scale_factor=0.5, mode="trilinear", align_corners=True)
        there, back = self.exponential(v), self.exponential(-v)
        up = lambda f: 2 * F.interpolate(f, scale_factor=2, mode="trilinear", align_corners=True)
        return self.warp(moving, up(there)), self.warp(fixed, up(back)), v


def ncc(a, b, win=9):
    """local normalised cross-correlation"""
    kernel = torch.ones(1, 1, win, win, win, device=a.device)
    box = lambda t: F.conv3d(t, kernel, padding=win // 2)
    n = win**3
    sa, sb = box(a), box(b)
    cross = box(a * b) - sa * sb / n
    va = box(a * a) - sa * sa / n
    vb = box(b * b) - sb * sb / n
    return -(cross * cross / (va * vb + 1e-5)).mean()


def smoothness(v):
    dz = (v[:, :, 1:] - v[:, :, :-1]).pow(2).mean()
    dy = (v[:, :, :, 1:] - v[:, :, :, :-1]).pow(2).mean()
    dx = (v[..., 1:] - v[..., :-1]).pow(2).mean()
    return (dx + dy + dz) / 3


def scan_pairs(batch):
    """One patient at the two ends of a breath: the same blobs, a little moved."""
    while True:
        coarse = torch.randn(batch, 1, 14, 16, 16)
        moved = 0.8 * coarse + 0.2 * torch.roll(coarse, 1, 2)
        pair = [F.interpolate(c, size=SHAPE, mode="trilinear").sigmoid() for c in (coarse, moved)]
        yield [p.cuda() for p in pair]


if __name__ == "__main__":
    torch.manual_seed(2023)
    torch.backends.cudnn.benchmark = True
    net = VoxelMorph(SHAPE).cuda()
    optim = torch.optim.Adam(net.parameters(), lr=1e-4)
    for step, (moving, fixed) in enumerate(scan_pairs(batch=2)):
        if step == 15:
            break
        warped, unwarped, velocity = net(moving, fixed)
        similarity = 0.5 * (ncc(fixed, warped) + ncc(moving, unwarped))
        rough = smoothness(velocity)
        loss = similarity + 1.0 * rough
        optim.zero_grad()
        loss.backward()
        optim.step()
        print(
            "step %02d  ncc %.4f  smooth %.6f" % (step, -similarity.item(), rough.item()),
            flush=True,
        )
