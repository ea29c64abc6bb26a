"""Crystals from ptychography: complex object and probe found by LBFGS with a closure, FFT of many overlapping patches, amplitude loss and total variation."""

import torch

device = "cuda"
SIDE, WINDOW, STEP, MODES = 1024, 128, 22, 3

grid = torch.arange(0, SIDE - WINDOW, STEP)
rows, cols = (g.flatten().to(device) for g in torch.meshgrid(grid, grid, indexing="ij"))
offsets = torch.arange(WINDOW, device=device)


def patches(obj):
    r = rows[:, None, None] + offsets[None, :, None]
    c = cols[:, None, None] + offsets[None, None, :]
    return obj[r, c]


def diffract(obj, probe):
    exits = patches(obj)[:, None] * probe[None]
    far = torch.fft.fftshift(torch.fft.fft2(exits, norm="ortho"), dim=(-2, -1))
    return far.abs().square().sum(1)


def total_variation(z):
    return z.diff(dim=0).abs().mean() + z.diff(dim=1).abs().mean()


y, x = torch.meshgrid(*(2 * [torch.linspace(-1, 1, WINDOW, device=device)]), indexing="ij")
disc = ((x**2 + y**2) < 0.4).float()
with torch.no_grad():
    truth = torch.polar(
        torch.rand(SIDE, SIDE, device=device) * 0.4 + 0.6, torch.rand(SIDE, SIDE, device=device)
    )
    probe_true = torch.stack([disc * torch.exp(1j * k * x) / (k + 1) for k in range(MODES)])
    measured = torch.poisson(1e3 * diffract(truth, probe_true)) / 1e3

obj = torch.ones(SIDE, SIDE, dtype=torch.complex64, device=device, requires_grad=True)
probe = (disc + 0j).repeat(MODES, 1, 1).requires_grad_()
lbfgs = torch.optim.LBFGS([obj, probe], lr=0.8, max_iter=3, history_size=10)

for outer in range(4):

    def closure():
        lbfgs.zero_grad()
        amplitude = (diffract(obj, probe) + 1e-8).sqrt()
        loss = (amplitude - measured.sqrt()).square().mean() + 1e-3 * total_variation(obj)
        loss.backward()
        return loss

    print(outer, lbfgs.step(closure).item())
