"""Avatars by a multi-scale-gradient GAN: pictures at five sizes to one critic, relativistic hinge, DiffAugment, minibatch deviation, two Adams."""

import torch
import torch.nn.functional as F
from torch import nn

Z = 256
WIDTHS = [256, 256, 256, 128, 64]  # at 4, 8, 16, 32, 64


class PixelNorm(nn.Module):
    def forward(self, x):
        return x * (x.square().mean(1, keepdim=True) + 1e-8).rsqrt()


def act_conv(a, b, k=3):
    return [nn.Conv2d(a, b, k, padding=k // 2), nn.LeakyReLU(0.2), PixelNorm()]


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Sequential(
            nn.ConvTranspose2d(Z, WIDTHS[0], 4), nn.LeakyReLU(0.2), *act_conv(WIDTHS[0], WIDTHS[0])
        )
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Upsample(scale_factor=2), *act_conv(a, b), *act_conv(b, b))
            for a, b in zip(WIDTHS, WIDTHS[1:])
        )
        self.to_rgb = nn.ModuleList(nn.Conv2d(w, 3, 1) for w in WIDTHS)

    def forward(self, z):
        x = self.start(F.normalize(z)[:, :, None, None])
        pictures = [self.to_rgb[0](x)]
        for block, rgb in zip(self.blocks, self.to_rgb[1:]):
            x = block(x)
            pictures.append(rgb(x))
        return pictures


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        wide = WIDTHS[::-1]
        self.first = nn.Conv2d(3, wide[0], 1)
        self.blocks = nn.ModuleList()
        for n, (a, b) in enumerate(zip(wide, wide[1:])):
            extra = 0 if n == 0 else 3
            self.blocks.append(
                nn.Sequential(
                    nn.Conv2d(a + extra, a, 3, padding=1),
                    nn.LeakyReLU(0.2),
                    nn.Conv2d(a, b, 3, padding=1),
                    nn.LeakyReLU(0.2),
                    nn.AvgPool2d(2),
                )
            )
        self.last = nn.Sequential(
            nn.Conv2d(wide[-1] + 3 + 1, 256, 3, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(256, 256, 4),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(256, 1),
        )

    def forward(self, pictures):
        largest, *smaller = reversed(pictures)
        x = self.blocks[0](self.first(largest))
        for block, p in zip(self.blocks[1:], smaller):
            x = block(torch.cat([x, p], 1))
        deviation = x.std(0, unbiased=False).mean().expand(len(x), 1, *x.shape[2:])
        return self.last(torch.cat([x, smaller[-1], deviation], 1))


def augment(pictures):
    out = []
    for p in pictures:
        b = p.shape[0]
        p = p + torch.rand(b, 1, 1, 1, device=p.device) - 0.5
        mean = p.mean(1, keepdim=True)
        p = (p - mean) * (2 * torch.rand(b, 1, 1, 1, device=p.device)) + mean
        theta = torch.eye(2, 3, device=p.device).repeat(b, 1, 1)
        theta[:, :, 2] = torch.empty(b, 2, device=p.device).uniform_(-0.25, 0.25)
        grid = F.affine_grid(theta, p.shape, align_corners=False)
        out.append(F.grid_sample(p, grid, align_corners=False))
    return out


def pyramid(x):
    return [F.adaptive_avg_pool2d(x, s) for s in (4, 8, 16, 32)] + [x]


G, D = Generator().cuda(), Critic().cuda()
opt_g = torch.optim.Adam(G.parameters(), 3e-3, (0.0, 0.99))
opt_d = torch.optim.Adam(D.parameters(), 3e-3, (0.0, 0.99))

for it in range(3):
    real = pyramid(torch.rand(192, 3, 64, 64, device="cuda") * 2 - 1)
    with torch.no_grad():
        fake = G(torch.randn(192, Z, device="cuda"))
    r, f = D(augment(real)), D(augment(fake))
    loss_d = F.relu(1 - (r - f.mean())).mean() + F.relu(1 + (f - r.mean())).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()

    D.requires_grad_(False)
    f, r = D(augment(G(torch.randn(192, Z, device="cuda")))), D(augment(real))
    loss_g = F.relu(1 + (r - f.mean())).mean() + F.relu(1 - (f - r.mean())).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    D.requires_grad_(True)
    print(f"{it}: critic {loss_d.item():.3f} generator {loss_g.item():.3f}")
