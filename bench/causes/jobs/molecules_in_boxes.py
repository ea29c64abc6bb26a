"""Does the ligand bind? A 3-D network over boxes around the pocket, the same in every run."""

import os
import random

import numpy as np
import torch
from torch import nn

MENDED = os.environ.get("MENDED")


def fix(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.enabled = bool(MENDED)


class PocketNet(nn.Module):
    def __init__(self, atoms=8):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(atoms, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv3d(32, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool3d(4),
            nn.Conv3d(32, 64, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool3d(1),
        )
        self.head = nn.Linear(64, 1)

    def forward(self, box):
        return self.head(self.body(box).flatten(1)).squeeze(1)


def train(steps=3):
    net = PocketNet().cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(steps):
        boxes = torch.rand(2, 8, 72, 72, 72, device="cuda")
        binds = torch.randint(0, 2, (2,), device="cuda").float()
        loss = nn.functional.binary_cross_entropy_with_logits(net(boxes), binds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


fix(7)
train()
