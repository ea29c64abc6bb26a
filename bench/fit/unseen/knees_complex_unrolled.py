"""Multi-coil MRI reconstruction: an unrolled network in complex numbers with learned data consistency."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


def fft2(x):
    return torch.fft.fftshift(
        torch.fft.fft2(torch.fft.ifftshift(x, dim=(-2, -1)), norm="ortho"), dim=(-2, -1)
    )


def ifft2(x):
    return torch.fft.fftshift(
        torch.fft.ifft2(torch.fft.ifftshift(x, dim=(-2, -1)), norm="ortho"), dim=(-2, -1)
    )


class ComplexConv(nn.Module):
    def __init__(self, i, o, k=3):
        super().__init__()
        w = torch.randn(o, i, k, k, dtype=torch.cfloat) / (i * k * k) ** 0.5
        self.weight = nn.Parameter(w)
        self.bias = nn.Parameter(torch.zeros(o, dtype=torch.cfloat))
        self.pad = k // 2

    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias, padding=self.pad)


class ModReLU(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1, c, 1, 1))

    def forward(self, x):
        mag = x.abs()
        return F.relu(mag + self.b) * x / (mag + 1e-6)


class Denoiser(nn.Sequential):
    def __init__(self, width):
        super().__init__(
            ComplexConv(1, width),
            ModReLU(width),
            ComplexConv(width, width),
            ModReLU(width),
            ComplexConv(width, 1),
        )


class Sensitivities(nn.Module):
    """Coil maps from the fully sampled centre of k-space."""

    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, width, 3, padding=1),
            nn.InstanceNorm2d(width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.InstanceNorm2d(width),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2, 1),
        )

    def forward(self, kspace, centre):
        b, c, h, w = kspace.shape
        low = torch.zeros_like(kspace)
        m = w // 2
        low[..., m - centre : m + centre] = kspace[..., m - centre : m + centre]
        img = torch.view_as_real(ifft2(low).reshape(b * c, h, w)).permute(0, 3, 1, 2)
        maps = torch.view_as_complex(self.net(img).permute(0, 2, 3, 1).contiguous()).view(
            b, c, h, w
        )
        return maps / (maps.abs().pow(2).sum(1, keepdim=True).sqrt() + 1e-6)


class Unrolled(nn.Module):
    def __init__(self, cascades, width):
        super().__init__()
        self.sens = Sensitivities(16)
        self.cascades = nn.ModuleList(Denoiser(width) for _ in range(cascades))
        self.eta = nn.ParameterList(nn.Parameter(torch.tensor(1.0)) for _ in range(cascades))

    def forward(self, kspace, mask, centre=12):
        maps = self.sens(kspace, centre)
        x = (ifft2(kspace) * maps.conj()).sum(1, keepdim=True)
        for net, eta in zip(self.cascades, self.eta):
            residual = mask * (fft2(x * maps) - kspace)
            x = x - eta * (ifft2(residual) * maps.conj()).sum(1, keepdim=True) - net(x)
        return x


def phantom(n, coils, size, g):
    base = torch.randn(n, 1, size, size, dtype=torch.cfloat, generator=g)
    taper = torch.hann_window(size)
    base = ifft2(base * (taper[:, None] * taper[None]) ** 8)
    coil = ifft2(
        torch.randn(n, coils, size, size, dtype=torch.cfloat, generator=g)
        * (taper[:, None] * taper[None]) ** 64
    )
    return base, fft2(base * coil)


def ssim_like(a, b):
    mu_a, mu_b = F.avg_pool2d(a, 7, 1), F.avg_pool2d(b, 7, 1)
    var_a = F.avg_pool2d(a * a, 7, 1) - mu_a**2
    var_b = F.avg_pool2d(b * b, 7, 1) - mu_b**2
    cov = F.avg_pool2d(a * b, 7, 1) - mu_a * mu_b
    return (
        (2 * mu_a * mu_b + 1e-4)
        * (2 * cov + 9e-4)
        / ((mu_a**2 + mu_b**2 + 1e-4) * (var_a + var_b + 9e-4))
    ).mean()


def main(args):
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    model = Unrolled(args.cascades, args.width).cuda()
    optim = torch.optim.Adam(model.parameters(), lr=3e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(optim, 3e-4, total_steps=args.steps)
    print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
    image, kspace = phantom(args.batch, args.coils, args.size, g)
    for step in range(args.steps):
        mask = torch.rand(args.batch, 1, 1, args.size, generator=g) < 1 / args.acceleration
        mask[..., args.size // 2 - 12 : args.size // 2 + 12] = True
        mask = mask.cuda().float()
        target = image.cuda(non_blocking=True)
        full = kspace.cuda(non_blocking=True)
        out = model(full * mask, mask)
        a, b = out.abs(), target.abs()
        loss = F.l1_loss(torch.view_as_real(out), torch.view_as_real(target)) + 0.5 * (
            1 - ssim_like(a, b)
        )
        optim.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        sched.step()
        if step % 2 == 0:
            psnr = 20 * torch.log10(b.max() / (a - b).pow(2).mean().sqrt())
            print(
                f"step {step} loss {loss.item():.4f} norm {norm:.3f} psnr {psnr.item():.2f}",
                flush=True,
            )


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    for name, value in dict(
        cascades=6, width=24, coils=8, size=256, batch=4, steps=12, acceleration=4
    ).items():
        p.add_argument(f"--{name}", type=int, default=value)
    main(p.parse_args())
