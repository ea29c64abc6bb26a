"""Chairs as voxels of 64^3: a 3-D GAN with least squares, two optimizers with their own rates, noise on the discriminator's input, fp16 with two scalers."""

import torch
from torch import nn


def up(i, o):
    return nn.Sequential(
        nn.ConvTranspose3d(i, o, 4, 2, 1, bias=False), nn.BatchNorm3d(o), nn.ReLU(True)
    )


def down(i, o, norm=True):
    layers = [nn.Conv3d(i, o, 4, 2, 1, bias=not norm)]
    if norm:
        layers.append(nn.InstanceNorm3d(o, affine=True))
    layers.append(nn.LeakyReLU(0.2, True))
    return nn.Sequential(*layers)


class Generator(nn.Module):
    def __init__(self, z=200, width=64):
        super().__init__()
        self.start = nn.Linear(z, width * 8 * 4**3)
        self.width = width
        self.body = nn.Sequential(
            up(width * 8, width * 4), up(width * 4, width * 2), up(width * 2, width)
        )
        self.last = nn.ConvTranspose3d(width, 1, 4, 2, 1)

    def forward(self, z):
        x = self.start(z).view(len(z), self.width * 8, 4, 4, 4)
        return torch.sigmoid(self.last(self.body(x)))


class Discriminator(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.body = nn.Sequential(
            down(1, width, norm=False),
            down(width, width * 2),
            down(width * 2, width * 4),
            down(width * 4, width * 8),
        )
        self.last = nn.Conv3d(width * 8, 1, 4)

    def forward(self, x):
        return self.last(self.body(x)).flatten()


class Training:
    def __init__(self, batch=80):
        self.batch = batch
        self.g, self.d = Generator().cuda(), Discriminator().cuda()
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=2.5e-3, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr=1e-5, betas=(0.5, 0.999))
        self.scale_g, self.scale_d = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")

    def noisy(self, x):
        return x + 0.05 * torch.randn_like(x)

    def step_d(self, real):
        z = torch.randn(self.batch, 200, device="cuda")
        with torch.autocast("cuda", torch.float16):
            with torch.no_grad():
                fake = self.g(z)
            a, b = self.d(self.noisy(real)), self.d(self.noisy(fake))
            loss = ((a - 1) ** 2).mean() + (b**2).mean()
        self.opt_d.zero_grad()
        self.scale_d.scale(loss).backward()
        self.scale_d.step(self.opt_d)
        self.scale_d.update()
        return loss

    def step_g(self):
        z = torch.randn(self.batch, 200, device="cuda")
        self.d.requires_grad_(False)
        with torch.autocast("cuda", torch.float16):
            loss = ((self.d(self.g(z)) - 1) ** 2).mean()
        self.opt_g.zero_grad()
        self.scale_g.scale(loss).backward()
        self.scale_g.step(self.opt_g)
        self.scale_g.update()
        self.d.requires_grad_(True)
        return loss


training = Training()
for it in range(4):
    voxels = (torch.rand(training.batch, 1, 64, 64, 64, device="cuda") > 0.9).float()
    d_loss, g_loss = training.step_d(voxels), training.step_g()
    print(it, "D", d_loss.item(), "G", g_loss.item())
