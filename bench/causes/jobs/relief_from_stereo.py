"""Depth from two cameras of a drone, with Lightning: shared features, a correlation for each disparity, and a network above it."""

import os

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 3 if os.environ.get("MENDED") else 16


class Pairs(Dataset):
    def __len__(self):
        return 2 * 16

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        left, right = torch.rand(2, 3, 192, 384, generator=g)
        return left, right, torch.rand(192, 384, generator=g) * 48


def conv(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


class Stereo(L.LightningModule):
    def __init__(self, width=48, disparities=24):
        super().__init__()
        self.disparities = disparities
        self.features = nn.Sequential(
            conv(3, width), conv(width, width, 2), conv(width, width), conv(width, width),
            conv(width, 2 * width), nn.Conv2d(2 * width, width, 1),
        )  # fmt: skip
        self.refine = nn.Sequential(
            conv(disparities + width, 96), conv(96, 96), conv(96, 64), conv(64, 64)
        )
        self.out = nn.Conv2d(64, disparities, 1)

    def forward(self, left, right):
        a, b = self.features(torch.cat([left, right])).chunk(2)
        costs = []
        for d in range(self.disparities):
            shifted = F.pad(b, (d, 0))[..., : b.shape[-1]]
            costs.append((a * shifted).mean(1))
        scores = self.out(self.refine(torch.cat([torch.stack(costs, 1), a], 1)))
        steps = torch.arange(self.disparities, device=scores.device).view(1, -1, 1, 1)
        depth = (scores.softmax(1) * steps).sum(1, keepdim=True) * 2
        return F.interpolate(depth, scale_factor=2, mode="bilinear").squeeze(1)

    def training_step(self, batch, index):
        left, right, truth = batch
        return F.smooth_l1_loss(self(left, right), truth)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-4)


trainer = L.Trainer(
    accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)  # fmt: skip
trainer.fit(Stereo(), DataLoader(Pairs(), batch_size=BATCH))
