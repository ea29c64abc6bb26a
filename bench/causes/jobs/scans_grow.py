"""Scans come from small to large. Each is smoothed, and kept in half precision in the place of the one before."""

import os

import torch
from torch import nn

ONCE = bool(os.environ.get("MENDED"))
SHAPES = [(48 + 2 * n, 456 + 12 * n, 456 + 12 * n) for n in range(14)]
smooth = nn.AvgPool3d(3, stride=1, padding=1)


class Archive:
    """What was seen of each patient."""

    def __init__(self):
        self.patients = {}
        if ONCE:
            sizes = [depth * height * width for depth, height, width in SHAPES]
            room = torch.empty(sum(sizes), dtype=torch.half, device="cuda")
            self.rooms = iter(room.split(sizes))

    def add(self, name, scan):
        clean = smooth(scan[None])[0]
        clean -= clean.mean()
        if ONCE:
            self.patients[name] = next(self.rooms).view_as(clean).copy_(clean)
        else:
            self.patients[name] = clean.half()


archive = Archive()
for number, shape in enumerate(SHAPES):
    archive.add(f"patient {number}", torch.rand(shape, device="cuda"))
print(sum(scan.numel() for scan in archive.patients.values()))
