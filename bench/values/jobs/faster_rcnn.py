"""Faster R-CNN that detects: which boxes survive depends on what the network computes."""

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_fpn

torch.manual_seed(0)
model = fasterrcnn_mobilenet_v3_large_fpn(
    weights=None, weights_backbone=None, num_classes=4, box_score_thresh=0.2, rpn_post_nms_top_n_test=800
).cuda().eval()  # fmt: skip
generator = torch.Generator().manual_seed(2)
with torch.no_grad():
    for size in (200, 320, 480):
        found = model([torch.rand(3, size, size, generator=generator).cuda() for _ in range(2)])
        print("boxes", [len(one["boxes"]) for one in found])
