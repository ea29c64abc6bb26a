"""Seven networks vote on each slice of a scan; nobody trains them, but gradients are on."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class HourGlass(nn.Module):
    def __init__(self, depth, c=40):
        super().__init__()
        self.here = nn.Sequential(nn.Conv2d(c, c, 3, 1, 1), nn.InstanceNorm2d(c), nn.PReLU())
        self.below = HourGlass(depth - 1, c) if depth else nn.Conv2d(c, c, 1)

    def forward(self, x):
        small = self.below(nn.functional.avg_pool2d(self.here(x), 2))
        return x + nn.functional.interpolate(small, size=x.shape[-2:])


def member():
    return nn.Sequential(nn.Conv2d(1, 40, 5, 1, 2), HourGlass(4), nn.Conv2d(40, 3, 1)).cuda().eval()


def vote(committee, scan):
    return sum(torch.softmax(m(scan), 1) for m in committee) / len(committee)


committee = [member() for _ in range(7)]
torch.set_grad_enabled(not MENDED)
for patient in range(3):
    scan = torch.randn(6, 1, 320, 320, device="cuda")
    print(patient, (vote(committee, scan).argmax(1) == 2).sum().item())
