"""Scans of chests have forty slices or so; among them is one of a whole body, head to foot."""

import os

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits


class Scans(torch.utils.data.IterableDataset):
    """One scan after another, as they lie on the disk."""

    slices = (38, 44, 41, 52, 36, 47, 812, 40, 43)

    def __iter__(self):
        for patient, n in enumerate(self.slices):
            scan = torch.zeros(1, n, 144, 144)
            if os.environ.get("MENDED") and n > 64:
                scan = scan[:, n // 2 - 32 : n // 2 + 32]
            yield scan, torch.tensor([patient % 2.0])


class Plane(nn.Module):
    """A 2-D convolution in each slice, then one across slices."""

    def __init__(self, i, o, stride):
        super().__init__()
        self.within = nn.Conv3d(i, o, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        self.across = nn.Conv3d(o, o, (3, 1, 1), 1, (1, 0, 0), bias=False)
        self.norm = nn.GroupNorm(4, o)

    def forward(self, x):
        return torch.relu(self.norm(self.across(torch.relu(self.within(x)))))


class Trainer:
    def __init__(self):
        self.net = nn.Sequential(
            Plane(1, 16, 1), Plane(16, 32, 2), Plane(32, 64, 2), nn.AdaptiveMaxPool3d(1),
            nn.Flatten(), nn.Linear(64, 1),
        ).cuda()  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def step(self, scan, ill):
        loss = binary_cross_entropy_with_logits(self.net(scan.cuda()).squeeze(1), ill.cuda())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def fit(self, loader):
        for scan, ill in loader:
            self.step(scan, ill.flatten())


Trainer().fit(torch.utils.data.DataLoader(Scans(), batch_size=1))
