"""A GAN with spectral norm and hinge loss: two discriminator steps to one of the generator, noise kept for pictures."""

import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import spectral_norm as sn


class GBlock(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(i), nn.BatchNorm2d(o)
        self.c1, self.c2, self.sc = (
            nn.Conv2d(i, o, 3, 1, 1),
            nn.Conv2d(o, o, 3, 1, 1),
            nn.Conv2d(i, o, 1),
        )
        self.up = nn.Upsample(scale_factor=2)

    def forward(self, x):
        h = self.c1(self.up(torch.relu(self.bn1(x))))
        return self.c2(torch.relu(self.bn2(h))) + self.sc(self.up(x))


class DBlock(nn.Module):
    def __init__(self, i, o, first=False):
        super().__init__()
        self.first = first
        self.c1, self.c2, self.sc = (
            sn(nn.Conv2d(i, o, 3, 1, 1)),
            sn(nn.Conv2d(o, o, 3, 1, 1)),
            sn(nn.Conv2d(i, o, 1)),
        )
        self.pool = nn.AvgPool2d(2)

    def forward(self, x):
        h = x if self.first else torch.relu(x)
        return self.pool(self.c2(torch.relu(self.c1(h)))) + self.sc(self.pool(x))


class Generator(nn.Module):
    def __init__(self, z=128, w=64):
        super().__init__()
        self.fc = nn.Linear(z, 16 * 16 * w)
        self.blocks = nn.Sequential(
            GBlock(16 * w, 8 * w), GBlock(8 * w, 4 * w), GBlock(4 * w, 2 * w), GBlock(2 * w, w)
        )
        self.out = nn.Sequential(nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, 3, 3, 1, 1), nn.Tanh())

    def forward(self, z):
        return self.out(self.blocks(self.fc(z).view(len(z), -1, 4, 4)))


class Discriminator(nn.Module):
    def __init__(self, w=64):
        super().__init__()
        self.blocks = nn.Sequential(
            DBlock(3, w, True),
            DBlock(w, 2 * w),
            DBlock(2 * w, 4 * w),
            DBlock(4 * w, 8 * w),
            DBlock(8 * w, 16 * w),
        )
        self.fc = sn(nn.Linear(16 * w, 1))

    def forward(self, x):
        return self.fc(torch.relu(self.blocks(x)).sum((2, 3)))


device = "cuda"
netG, netD = Generator().to(device), Discriminator().to(device)
optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.0, 0.9))
optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.0, 0.9))
fixed = torch.randn(16, 128, device=device)
B = 64
for step in range(4):
    for _ in range(2):
        real = torch.rand(B, 3, 64, 64).to(device) * 2 - 1
        with torch.no_grad():
            fake = netG(torch.randn(B, 128, device=device))
        optD.zero_grad()
        lossD = torch.relu(1 - netD(real)).mean() + torch.relu(1 + netD(fake)).mean()
        lossD.backward()
        optD.step()
    optG.zero_grad()
    lossG = -netD(netG(torch.randn(B, 128, device=device))).mean()
    lossG.backward()
    optG.step()
    print(step, lossD.item(), lossG.item())
with torch.no_grad():
    print(netG.eval()(fixed).shape)
