"""Turbulence made fine from coarse: a 3-D residual network with pixel shuffle in space, divergence and spectra in the loss, velocities periodic in all directions."""

import torch
from torch import nn
from torch.nn import functional as F


class PeriodicConv3d(nn.Conv3d):
    def __init__(self, i, o, k=3):
        super().__init__(i, o, k, padding=k // 2, padding_mode="circular")


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = PeriodicConv3d(c, c)
        self.b = PeriodicConv3d(c, c)
        self.scale = nn.Parameter(torch.full((1, c, 1, 1, 1), 0.1))

    def forward(self, x):
        return x + self.scale * self.b(F.leaky_relu(self.a(x), 0.1))


def shuffle3d(x, r=2):
    b, c, d, h, w = x.shape
    x = x.view(b, c // r**3, r, r, r, d, h, w)
    return x.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(b, c // r**3, d * r, h * r, w * r)


class SuperResolver(nn.Module):
    def __init__(self, width=40, blocks=6):
        super().__init__()
        self.head = PeriodicConv3d(3, width)
        self.body = nn.Sequential(*[Block(width) for _ in range(blocks)])
        self.up = PeriodicConv3d(width, width * 8 // 2, 1)
        self.tail = PeriodicConv3d(width // 2, 3)

    def forward(self, coarse):
        x = self.head(coarse)
        x = x + self.body(x)
        fine = self.tail(F.gelu(shuffle3d(self.up(x))))
        return fine + F.interpolate(coarse, scale_factor=2, mode="trilinear")


def divergence(u):
    """Central differences on the periodic box: B x D x H x W."""
    return sum((u[:, i].roll(-1, i + 1) - u[:, i].roll(1, i + 1)) / 2 for i in range(3))


def spectrum_loss(a, b):
    fa, fb = (torch.fft.rfftn(v, dim=(2, 3, 4), norm="ortho").abs().clamp_min(1e-6) for v in (a, b))
    return (fa.log() - fb.log()).abs().mean()


def snapshots(batch, side):
    """Random solenoidal waves, and the same filtered to half the resolution."""
    x = torch.arange(side, device="cuda") * (2 * torch.pi / side)
    k = torch.randint(1, 9, (batch, 3), device="cuda").float()
    phase = x * k[..., None]
    u = torch.sin(phase[:, 1])[:, None, :, None].expand(-1, side, -1, side)
    v = torch.sin(phase[:, 2])[:, None, None, :].expand(-1, side, side, -1)
    w = torch.sin(phase[:, 0])[:, :, None, None].expand(-1, -1, side, side)
    fine = torch.stack([u, v, w], 1) + 0.05 * torch.randn(batch, 3, side, side, side, device="cuda")
    return F.avg_pool3d(fine, 2), fine


torch.manual_seed(0)
model = SuperResolver().cuda()
opt = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.9, 0.99))
for it in range(5):
    coarse, fine = snapshots(4, 96)
    guess = model(coarse)
    mse = F.mse_loss(guess, fine)
    div = divergence(guess).square().mean()
    spec = spectrum_loss(guess, fine)
    loss = mse + 0.1 * div + 0.01 * spec
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{it} mse {mse.item():.4f} div {div.item():.4f} spectrum {spec.item():.4f}")
