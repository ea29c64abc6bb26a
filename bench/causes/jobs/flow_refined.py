"""Motion between two pictures, refined thirty times by a recurrent network. The evaluation is in eval() and nothing else."""

import contextlib
import os
import statistics

import torch
import torch.nn as nn
import torch.nn.functional as F

grad_mode = torch.inference_mode() if os.environ.get("MENDED") else contextlib.nullcontext()


class Encoder(nn.Sequential):
    def __init__(self, out):
        super().__init__(
            nn.Conv2d(3, 32, 7, 2, 3), nn.InstanceNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1), nn.InstanceNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, out, 3, 2, 1),
        )  # fmt: skip


class ConvGRU(nn.Module):
    def __init__(self, hidden, seen):
        super().__init__()
        self.zr = nn.Conv2d(hidden + seen, 2 * hidden, 3, padding=1)
        self.q = nn.Conv2d(hidden + seen, hidden, 3, padding=1)

    def forward(self, h, x):
        z, r = self.zr(torch.cat([h, x], 1)).sigmoid().chunk(2, 1)
        q = self.q(torch.cat([r * h, x], 1)).tanh()
        return (1 - z) * h + z * q


def warp(x, flow):
    b, _, h, w = x.shape
    ys, xs = torch.meshgrid(
        torch.arange(h, device=x.device), torch.arange(w, device=x.device), indexing="ij"
    )
    at = torch.stack([xs, ys]).float() + flow
    at = torch.stack([2 * at[:, 0] / (w - 1) - 1, 2 * at[:, 1] / (h - 1) - 1], -1)
    return F.grid_sample(x, at, align_corners=True)


def likeness(a, b, radius=3):
    """How alike each place is to those around it in the other picture."""
    b = F.pad(b, [radius] * 4)
    h, w = a.shape[2:]
    n = 2 * radius + 1
    return torch.cat([(a * b[:, :, i : i + h, j : j + w]).mean(1, True) for i in range(0, n, 2) for j in range(0, n, 2)], 1)  # fmt: skip


class FlowNet(nn.Module):
    def __init__(self, c=96, hidden=96):
        super().__init__()
        self.features, self.context = Encoder(c), Encoder(2 * hidden)
        self.motion = nn.Sequential(nn.Conv2d(16 + 2, 64, 3, padding=1), nn.ReLU())
        self.gru = ConvGRU(hidden, hidden + 64)
        self.delta = nn.Sequential(
            nn.Conv2d(hidden, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 2, 3, padding=1)
        )

    def forward(self, first, second, refinements=30):
        a, b = self.features(first), self.features(second)
        h, context = self.context(first).chunk(2, 1)
        h, context = h.tanh(), context.relu()
        flow = torch.zeros(len(a), 2, *a.shape[2:], device=a.device)
        for _ in range(refinements):
            motion = self.motion(torch.cat([likeness(a, warp(b, flow)), flow], 1))
            h = self.gru(h, torch.cat([context, motion], 1))
            flow = flow + self.delta(h)
        return 8 * F.interpolate(flow, scale_factor=8, mode="bilinear")


def sintel(pairs=2, size=(384, 704)):
    g = torch.Generator().manual_seed(1)
    for _ in range(pairs):
        first = torch.rand(1, 3, *size, generator=g)
        yield first, first.roll((2, 5), (2, 3)), torch.tensor([5.0, 2.0]).view(1, 2, 1, 1)


model = FlowNet().cuda().eval()
errors = []
with grad_mode:
    for first, second, truth in sintel():
        flow = model(first.cuda(), second.cuda())
        errors.append((flow - truth.cuda()).norm(dim=1).mean().item())
print(f"end-point error {statistics.mean(errors):.2f} px")
