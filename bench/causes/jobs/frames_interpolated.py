"""An old film is made smooth: two frames between each two. The film is written when all of it is there, and until then it is on the GPU."""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--pairs", type=int, default=70)
parser.add_argument("--height", type=int, default=576)
parser.add_argument("--width", type=int, default=1024)
args = parser.parse_args()
MENDED = os.environ.get("MENDED")


class Between(nn.Module):
    """A flow at a quarter of the size, and a mask of which frame to trust."""

    def __init__(self, c=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(7, c, 5, 2, 2), nn.PReLU(), nn.Conv2d(c, c, 3, 2, 1), nn.PReLU(),
            nn.Conv2d(c, c, 3, 1, 1), nn.PReLU(), nn.Conv2d(c, 5, 3, 1, 1),
        )  # fmt: skip

    def warp(self, frame, flow):
        b, _, h, w = frame.shape
        eye = torch.eye(2, 3, device=frame.device).expand(b, -1, -1)
        grid = F.affine_grid(eye, frame.shape, align_corners=False)
        return F.grid_sample(frame, grid + flow.permute(0, 2, 3, 1), align_corners=False)

    def forward(self, first, second, t):
        when = torch.full_like(first[:, :1], t)
        out = self.net(torch.cat([first, second, when], 1))
        out = F.interpolate(out, first.shape[-2:], mode="bilinear")
        mask = out[:, 4:].sigmoid()
        a, b = self.warp(first, out[:, :2]), self.warp(second, out[:, 2:4])
        return mask * a + (1 - mask) * b


def written(frame):
    return (frame[0].clamp(0, 1) * 255).byte().permute(1, 2, 0).cpu().numpy()


model = Between().cuda().eval()
film = []
with torch.inference_mode():
    second = torch.rand(1, 3, args.height, args.width, device="cuda")
    for n in range(args.pairs):
        first, second = second, torch.rand(1, 3, args.height, args.width, device="cuda")
        new = [first] + [model(first, second, t) for t in (1 / 3, 2 / 3)]
        film += [written(frame) for frame in new] if MENDED else new
with tempfile.TemporaryDirectory() as place:
    for n, frame in enumerate(film[:5]):
        np.save(Path(place) / f"{n:05}.npy", frame if MENDED else written(frame))
print(len(film), "frames")
