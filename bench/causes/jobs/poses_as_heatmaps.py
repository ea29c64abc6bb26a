"""Key points of people in a test set: the full heatmaps of every picture wait on the GPU for the evaluation."""

import os

import timm
import torch
from torch import nn

JOINTS = 17


class Pose(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = timm.create_model("resnet10t", features_only=True, out_indices=(3,))
        wide = self.body.feature_info.channels()[-1]
        self.up = nn.Sequential(
            nn.ConvTranspose2d(wide, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 64, 4, 2, 1)
        )
        self.head = nn.Conv2d(64, JOINTS, 1)

    def forward(self, x):
        maps = self.head(self.up(self.body(x)[-1]))
        return nn.functional.interpolate(maps, size=x.shape[-2:], mode="bilinear")


def both_ways(model, people):
    """The mean of the heatmaps of the pictures and of their mirror images."""
    return (model(people) + model(people.flip(-1)).flip(-1)) / 2


def places(heat):
    at = heat.flatten(1).argmax(1)
    return torch.stack([at % heat.shape[-1], at // heat.shape[-1]], 1)


@torch.inference_mode()
def evaluate(model, batches=16, batch=20):
    found = {}
    for n in range(batches):
        people = torch.rand(batch, 3, 256, 192, device="cuda")
        for m, heat in enumerate(both_ways(model, people)):
            found[n * batch + m] = places(heat).cpu() if os.environ.get("MENDED") else heat
    return found


found = evaluate(Pose().cuda().eval())
if not os.environ.get("MENDED"):
    found = {name: places(heat).cpu() for name, heat in found.items()}
print(len(found))
