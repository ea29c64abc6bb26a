"""A Glow-like flow: actnorm, invertible 1x1 convolutions and affine couplings; likelihood in bits."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ActNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(1, c, 1, 1))
        self.log_scale = nn.Parameter(torch.zeros(1, c, 1, 1))

    def forward(self, x):
        h, w = x.shape[2:]
        return (x + self.loc) * self.log_scale.exp(), h * w * self.log_scale.sum()


class InvConv(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(c, c))[0])

    def forward(self, x):
        h, w = x.shape[2:]
        logdet = h * w * torch.slogdet(self.weight.double())[1].float()
        return F.conv2d(x, self.weight[:, :, None, None]), logdet


class Coupling(nn.Module):
    def __init__(self, c, hidden):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(c // 2, hidden, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(hidden, hidden, 1), nn.ReLU(inplace=True),
            nn.Conv2d(hidden, c, 3, padding=1),
        )  # fmt: skip
        nn.init.zeros_(self.net[-1].weight)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        log_s, t = self.net(a).chunk(2, 1)
        s = torch.sigmoid(log_s + 2)
        return torch.cat([a, (b + t) * s], 1), s.log().flatten(1).sum(1)


class Flow(nn.Module):
    def __init__(self, c, hidden):
        super().__init__()
        self.steps = nn.ModuleList([ActNorm(c), InvConv(c), Coupling(c, hidden)])

    def forward(self, x):
        total = 0
        for s in self.steps:
            x, ld = s(x)
            total = total + ld
        return x, total


class Glow(nn.Module):
    def __init__(self, c=3, flows=12, levels=3, hidden=192):
        super().__init__()
        self.levels = nn.ModuleList()
        for i in range(levels):
            c *= 4
            self.levels.append(nn.ModuleList(Flow(c, hidden) for _ in range(flows)))
            if i < levels - 1:
                c //= 2

    def forward(self, x):
        logdet, logp = 0, 0
        for i, level in enumerate(self.levels):
            x = F.pixel_unshuffle(x, 2)
            for flow in level:
                x, ld = flow(x)
                logdet = logdet + ld
            z = x
            if i < len(self.levels) - 1:
                x, z = x.chunk(2, 1)
            logp = logp - 0.5 * (z.flatten(1) ** 2 + math.log(2 * math.pi)).sum(1)
        return logp + logdet


glow = Glow().cuda()
optimizer = torch.optim.Adamax(glow.parameters(), lr=1e-4)
for i in range(4):
    image = torch.randint(0, 32, (32, 3, 64, 64)).cuda() / 32 - 0.5
    nll = -glow(image + torch.rand_like(image) / 32)
    loss = ((nll / math.log(2)) / (64 * 64 * 3) + 5).mean()
    glow.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{i}: {loss.item():.4f} bits")
