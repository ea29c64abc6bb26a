"""Air around buildings by a Fourier neural operator in 3-D: complex weights for the lowest modes, relative L2, Adam with weight decay."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class SpectralConv3d(nn.Module):
    def __init__(self, c_in, c_out, modes):
        super().__init__()
        self.modes, self.c_out = modes, c_out
        scale = 1 / (c_in * c_out)
        self.weights = nn.ParameterList(
            [
                nn.Parameter(
                    scale * torch.rand(c_in, c_out, *modes, dtype=torch.cfloat, device="cuda")
                )
                for _ in range(4)
            ]
        )

    def forward(self, x):
        m1, m2, m3 = self.modes
        x_ft = torch.fft.rfftn(x, dim=(-3, -2, -1))
        out = torch.zeros(
            x.shape[0], self.c_out, *x_ft.shape[2:], dtype=torch.cfloat, device=x.device
        )
        corners = [
            (slice(None, m1), slice(None, m2)),
            (slice(-m1, None), slice(None, m2)),
            (slice(None, m1), slice(-m2, None)),
            (slice(-m1, None), slice(-m2, None)),
        ]
        for w, (a, b) in zip(self.weights, corners):
            out[:, :, a, b, :m3] = torch.einsum("bixyz,ioxyz->boxyz", x_ft[:, :, a, b, :m3], w)
        return torch.fft.irfftn(out, s=x.shape[-3:])


class FNO3d(nn.Module):
    def __init__(self, modes=(12, 12, 8), width=24, depth=4):
        super().__init__()
        self.lift = nn.Linear(4 + 3, width)
        self.spectral = nn.ModuleList([SpectralConv3d(width, width, modes) for _ in range(depth)])
        self.local = nn.ModuleList([nn.Conv3d(width, width, 1) for _ in range(depth)])
        self.project = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, 3))

    @staticmethod
    def grid(shape, device):
        axes = [torch.tensor(np.linspace(0, 1, n), dtype=torch.float32) for n in shape]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).to(device)

    def forward(self, x):
        g = self.grid(x.shape[1:4], x.device)
        x = torch.cat([x, g.expand(x.shape[0], *g.shape)], -1)
        x = self.lift(x).permute(0, 4, 1, 2, 3)
        x = F.pad(x, (0, 4))
        for i, (s, l) in enumerate(zip(self.spectral, self.local)):
            x = s(x) + l(x)
            if i + 1 < len(self.spectral):
                x = F.gelu(x)
        x = x[..., :-4].permute(0, 2, 3, 4, 1)
        return self.project(x)


def relative_l2(p, t):
    return ((p - t).flatten(1).norm(dim=1) / t.flatten(1).norm(dim=1)).mean()


if __name__ == "__main__":
    model = FNO3d().cuda()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(adam, step_size=100, gamma=0.5)
    fields = torch.randn(24, 64, 64, 36, 4)
    flows = torch.randn(24, 64, 64, 36, 3)
    for i in range(0, 24, 6):
        x, y = fields[i : i + 6].cuda(), flows[i : i + 6].cuda()
        adam.zero_grad()
        loss = relative_l2(model(x), y)
        loss.backward()
        adam.step()
        scheduler.step()
        print(i // 6, loss.item())
