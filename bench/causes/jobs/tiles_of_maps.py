"""A server of maps keeps thumbnails of the tiles that it renders, in turn with tiles of ever larger scales."""

import os

if os.environ.get("MENDED"):
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

import torch
import torch.nn.functional as F

thumbnails = []
for scale in range(12):
    side = 2048 + 256 * scale
    for tile in range(3):
        heights = torch.rand(4, side, side, device="cuda")
        thumbnail = F.avg_pool2d(heights[None], 4)[0].contiguous()
        if tile == 0:
            thumbnails.append(thumbnail)
        del heights, thumbnail
print(sum(t.numel() for t in thumbnails))
