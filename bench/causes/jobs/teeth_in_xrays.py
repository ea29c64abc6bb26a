"""Cavities in X-rays of whole jaws, by a small vision transformer of timm on large pictures. Its fused attention was switched off to export a model once."""

import os

import timm
import torch
import torch.nn.functional as F
from timm.layers import set_fused_attn
from torch import nn

# ONNX did not know the fused one.
set_fused_attn(bool(os.environ.get("MENDED")))


class Cavities(nn.Module):
    """Each patch of the picture is sound or not."""

    def __init__(self, side=672):
        super().__init__()
        self.body = timm.create_model("vit_small_patch16_224", img_size=side, num_classes=0)
        self.head = nn.Sequential(nn.LayerNorm(384), nn.Linear(384, 3))

    def forward(self, picture):
        tokens = self.body.forward_features(picture)
        return self.head(tokens[:, self.body.num_prefix_tokens :])


def focal(scores, truth, gamma=2.0):
    ce = F.cross_entropy(scores, truth, reduction="none")
    return ((1 - torch.exp(-ce)) ** gamma * ce).mean()


def jaws(count, side=672):
    for _ in range(count):
        gray = torch.rand(2, 1, side, side).expand(-1, 3, -1, -1)
        yield gray, torch.randint(0, 3, (2, (side // 16) ** 2))


model = Cavities().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
for step, (picture, truth) in enumerate(jaws(3)):
    scores = model(picture.cuda())
    loss = focal(scores.flatten(0, 1), truth.cuda().flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
