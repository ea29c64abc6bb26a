"""Flow around a wing by a Fourier neural operator. The grid has 1021 points on each side, which is a prime, and its transforms need much room."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
POINTS = 1021


class Spectral(nn.Module):
    def __init__(self, c, modes=12):
        super().__init__()
        self.modes = modes
        self.low = nn.Parameter(torch.randn(c, c, modes, modes, dtype=torch.cfloat) / c)
        self.high = nn.Parameter(torch.randn(c, c, modes, modes, dtype=torch.cfloat) / c)

    def forward(self, x):
        m, (h, w) = self.modes, x.shape[-2:]
        f = torch.fft.rfft2(x)
        low = torch.einsum("bihw,iohw->bohw", f[:, :, :m, :m], self.low)
        high = torch.einsum("bihw,iohw->bohw", f[:, :, -m:, :m], self.high)
        f.zero_()
        f[:, :, :m, :m], f[:, :, -m:, :m] = low, high
        return torch.fft.irfft2(f, s=(h, w))


class Operator(nn.Module):
    def __init__(self, c=16, layers=4):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, c, 1), nn.Conv2d(c, 2, 1)
        self.far = nn.ModuleList(Spectral(c) for _ in range(layers))
        self.near = nn.ModuleList(nn.Conv2d(c, c, 1) for _ in range(layers))

    def forward(self, x):
        if MENDED:
            x = nn.functional.pad(x, (0, 3, 0, 3))
        x = self.enter(x)
        for far, near in zip(self.far, self.near):
            x = nn.functional.gelu(far(x).add_(near(x)))
        return self.leave(x)[..., :POINTS, :POINTS]


class Wing:
    """Its shape and the angle of the wind, as a field."""

    def __init__(self, angle):
        self.angle = angle

    def field(self, points):
        y, x = torch.meshgrid(*(torch.linspace(-1, 1, points, device="cuda"),) * 2, indexing="ij")
        inside = ((x / 0.6) ** 2 + (y / 0.1) ** 2 < 1).float()
        return torch.stack([inside, x, y + self.angle * x])


model = Operator().cuda().eval()
with torch.inference_mode():
    for angles in torch.linspace(0, 0.5, 18).split(6):
        wings = torch.stack([Wing(a.item()).field(POINTS) for a in angles])
        print(model(wings).shape)
