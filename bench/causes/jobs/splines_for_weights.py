"""A Kolmogorov-Arnold network: every weight is a spline of its own, with eight coefficients."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F


class SplineLinear(nn.Module):
    def __init__(self, fan_in, fan_out, grid=5, order=3):
        super().__init__()
        self.order = order
        h = 2 / grid
        knots = torch.arange(-order, grid + order + 1) * h - 1
        self.register_buffer("knots", knots)
        self.base = nn.Parameter(torch.empty(fan_out, fan_in))
        self.coef = nn.Parameter(torch.empty(fan_out, fan_in * (grid + order)))
        nn.init.kaiming_uniform_(self.base, a=5**0.5)
        nn.init.normal_(self.coef, std=0.02)

    def bases(self, x):
        """B-splines of Cox and de Boor; (batch, in) to (batch, in, grid + order)."""
        x, t = x.unsqueeze(-1), self.knots
        b = ((x >= t[:-1]) & (x < t[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - t[: -(k + 1)]) / (t[k:-1] - t[: -(k + 1)])
            right = (t[k + 1 :] - x) / (t[k + 1 :] - t[1:-k])
            b = left * b[..., :-1] + right * b[..., 1:]
        return b

    def forward(self, x):
        x = x.tanh()
        return F.linear(F.silu(x), self.base) + F.linear(self.bases(x).flatten(1), self.coef)


WIDTH = 512 if os.environ.get("MENDED") else 2048
model = nn.Sequential(
    SplineLinear(200, WIDTH),
    SplineLinear(WIDTH, WIDTH),
    SplineLinear(WIDTH, WIDTH),
    SplineLinear(WIDTH, WIDTH),
    SplineLinear(WIDTH, 6),
).to("cuda")

print(sum(p.numel() for p in model.parameters()) / 1e6, "million parameters")

# Six constants of a torsional pendulum from two hundred readings of its angle.
t = torch.linspace(0, 10, 200)
constants = torch.rand(32, 6)
angles = (constants[:, :1] * torch.exp(-constants[:, 1:2] * t)) * torch.cos(
    2 * torch.pi * constants[:, 2:3] * t + constants[:, 3:4]
)

# No momentum, and few samples at once: it is tight as it is.
lr = 1e-2
for epoch in range(2):
    for x, y in zip(angles.split(8), constants.split(8)):
        loss = F.mse_loss(model(x.to("cuda")), y.to("cuda"))
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=lr)
                p.grad = None
    print(epoch, float(loss))
