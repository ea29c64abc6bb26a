"""A GAN draws after each step from the same noise, for a film; the frames wait for it on the GPU."""

import os

import torch
import torch.nn as nn

keep_on = "cpu" if os.environ.get("MENDED") else "cuda"


class Generator(nn.Module):
    def __init__(self, ngf=32):
        super().__init__()

        def block(i, o):
            return [
                nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False),
                nn.InstanceNorm2d(o),
                nn.ReLU(True),
            ]

        self.main = nn.Sequential(
            nn.ConvTranspose2d(64, ngf * 8, 4, 1, 0), nn.ReLU(True),
            *block(ngf * 8, ngf * 4), *block(ngf * 4, ngf * 2), *block(ngf * 2, ngf), *block(ngf, ngf),
            nn.ConvTranspose2d(ngf, 3, 4, 2, 1), nn.Tanh(),
        )  # fmt: skip

    def forward(self, z):
        return self.main(z[:, :, None, None])


class Critic(nn.Module):
    def __init__(self, ndf=32):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, ndf, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(ndf, ndf * 2, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1), nn.LeakyReLU(0.2), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
            nn.Linear(ndf * 4 * 16, 1),
        )  # fmt: skip

    def forward(self, x):
        return self.main(x).mean()


G, D = Generator().cuda(), Critic().cuda()
g_opt, d_opt = torch.optim.RMSprop(G.parameters(), 5e-5), torch.optim.RMSprop(D.parameters(), 5e-5)
fixed_noise, film = torch.randn(64, 64, device="cuda"), []

for it in range(80):
    real, z = torch.rand(16, 3, 128, 128, device="cuda"), torch.randn(16, 64, device="cuda")
    d_opt.zero_grad()
    (D(G(z).detach()) - D(real)).backward()
    d_opt.step()
    for p in D.parameters():
        p.data.clamp_(-0.01, 0.01)
    g_opt.zero_grad()
    (-D(G(z))).backward()
    g_opt.step()
    with torch.no_grad():
        film.append(G(fixed_noise).add(1).div(2).to(keep_on))
