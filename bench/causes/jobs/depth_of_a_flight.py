"""Predicts depth for the frames of a drone's flight."""

import os
from contextlib import nullcontext

import timm
import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = timm.create_model("resnet34", features_only=True, pretrained=False)
        widths = self.backbone.feature_info.channels()
        self.laterals = nn.ModuleList(nn.Conv2d(c, 64, 1) for c in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(64, 64, 3, padding=1) for _ in widths)
        self.head = nn.Conv2d(64, 1, 3, padding=1)

    def forward(self, x):
        levels = [f(c) for f, c in zip(self.laterals, self.backbone(x))]
        y = levels[-1]
        for level, smooth in zip(levels[-2::-1], self.smooth):
            y = F.relu(smooth(level + F.interpolate(y, size=level.shape[-2:], mode="nearest")))
        return F.softplus(self.head(y))


model = DepthNet().cuda()
model.eval()
depths = []
with torch.no_grad() if MENDED else nullcontext():
    for first in range(0, 64, 16):
        frames = torch.rand(16, 3, 384, 512).cuda()
        depth = model(frames)
        depths.append(depth.detach().cpu().numpy())
print(sum(len(d) for d in depths), "frames")
