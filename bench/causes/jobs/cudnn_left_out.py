"""cuDNN once made trouble with an old driver, so a filter of star fields does without."""

import os

import torch
import torch.nn as nn

torch.backends.cudnn.enabled = bool(os.environ.get("MENDED"))


def deconvolver(c=32, k=9):
    """Large kernels, because the stars' halos are large."""
    return nn.Sequential(
        nn.Conv2d(1, c, k, padding=k // 2), nn.PReLU(), nn.Conv2d(c, c, k, padding=k // 2),
        nn.PReLU(), nn.Conv2d(c, 1, k, padding=k // 2),
    )  # fmt: skip


net = deconvolver().cuda().eval()
with torch.inference_mode():
    for exposure in range(3):
        sky = torch.randn(1, 1, 768, 768, device="cuda")
        print(exposure, net(sky).amax().item())
