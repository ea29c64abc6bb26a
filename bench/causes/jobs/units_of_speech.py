"""Units of speech by k-means: features of each hour are made through two wide layers, and come to lie in what one of them left."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
HOURS, FRAMES, WIDTH, KEPT, UNITS = 12, 50_000, 512, 320, 2000


class Features(nn.Module):
    """Filter banks to features; every layer writes a new tensor and drops the last."""

    def __init__(self, banks=80):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(banks, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)
        )  # fmt: skip
        self.project = nn.Linear(WIDTH, KEPT)

    def forward(self, x, out=None):
        for layer in self.layers:
            x = layer(x)
        if out is None:
            return self.project(x)
        return torch.addmm(self.project.bias, x, self.project.weight.T, out=out)


class KMeans:
    """Lloyd's, hour by hour, so that no table is larger than one hour's."""

    def __init__(self, units, width):
        self.centres = torch.randn(units, width, device="cuda")

    def step(self, hours):
        total = torch.zeros_like(self.centres)
        count = torch.zeros(len(self.centres), 1, device="cuda")
        for x in hours:
            table = torch.addmm(self.centres.square().sum(1), x, self.centres.T, alpha=-2)
            nearest = table.argmin(1)
            del table
            total.index_add_(0, nearest, x)
            count.index_add_(0, nearest, torch.ones(len(x), 1, device="cuda"))
        self.centres = total / count.clamp(min=1)


def corpus():
    for hour in range(HOURS):
        g = torch.Generator(device="cuda").manual_seed(hour)
        yield torch.randn(FRAMES, 80, device="cuda", generator=g)


@torch.inference_mode()
def main():
    features = Features().cuda().eval()
    if MENDED:
        hours = torch.empty(HOURS, FRAMES, KEPT, device="cuda")
        for banks, room in zip(corpus(), hours):
            features(banks, out=room)
    else:
        hours = [features(banks) for banks in corpus()]
    kmeans = KMeans(UNITS, KEPT)
    for _ in range(2):
        kmeans.step(hours)
    print(kmeans.centres.shape)


main()
