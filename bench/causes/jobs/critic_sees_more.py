"""A GAN of textures whose critic gets ten times as many fakes as the generator learns from."""

import os
from contextlib import ExitStack

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class Styled(nn.Module):
    """Twice as large, with noise and a style."""

    def __init__(self, i, o, style=64):
        super().__init__()
        self.conv = nn.Conv2d(i, o, 3, padding=1)
        self.style, self.noise = nn.Linear(style, 2 * o), nn.Parameter(torch.zeros(o, 1, 1))

    def forward(self, x, w):
        x = nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
        x = self.conv(x)
        x = nn.functional.leaky_relu(x + self.noise * torch.randn_like(x[:, :1]), 0.2)
        scale, shift = self.style(w)[:, :, None, None].chunk(2, 1)
        return nn.functional.instance_norm(x) * (1 + scale) + shift


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        self.start = nn.Parameter(torch.randn(1, 128, 4, 4))
        self.ups = nn.ModuleList(
            Styled(i, o) for i, o in ((128, 128), (128, 64), (64, 32), (32, 32), (32, 16))
        )
        self.rgb = nn.Conv2d(16, 3, 1)

    def forward(self, z):
        w = self.map(z)
        x = self.start.expand(len(z), -1, -1, -1)
        for up in self.ups:
            x = up(x, w)
        return self.rgb(x).tanh()


def critic():
    widths = (3, 16, 32, 64, 64)
    layers = []
    for i, o in zip(widths, widths[1:]):
        layers += [nn.Conv2d(i, o, 4, 2, 1), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 1))


G, D = Generator().cuda(), critic().cuda()
g_opt = torch.optim.Adam(G.parameters(), 2e-4, (0.0, 0.9))
d_opt = torch.optim.Adam(D.parameters(), 2e-4, (0.0, 0.9))
for it in range(3):
    # The critic's turn. What it learns from is only looked at by it.
    with ExitStack() as stack:
        if MENDED:
            stack.enter_context(torch.no_grad())
        fake = G(torch.randn(160, 64, device="cuda"))
    real = torch.rand(160, 3, 128, 128, device="cuda") * 2 - 1
    d_loss = (1 - D(real)).relu().mean() + (1 + D(fake)).relu().mean()
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    del fake, real, d_loss
    # The generator's.
    g_loss = -D(G(torch.randn(16, 64, device="cuda"))).mean()
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
