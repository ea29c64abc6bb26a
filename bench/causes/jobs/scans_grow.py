"""Scans come from small to large. Of each, a few slices stay, in the middle of what the next one needs whole."""

import os

if os.environ.get("MENDED"):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

from collections import deque

import torch
from torch import nn

smooth = nn.Conv3d(1, 1, 3, padding=1, bias=False).cuda().requires_grad_(False)
kept = deque(maxlen=40)


def look_at(scan):
    """The brightest slices and the whole, filtered."""
    filtered = smooth(scan[None, None])[0, 0]
    for place in filtered.mean((1, 2)).topk(3).indices.tolist():
        kept.append((scan[place] - filtered[place]).unsqueeze(0).expand(12, -1, -1).contiguous())
    return filtered.amax()


for number in range(14):
    side = 144 + 20 * number
    depth = 60 + 6 * number
    scan = torch.rand(depth, side, side, device="cuda")
    peak = look_at(scan)
    del scan
