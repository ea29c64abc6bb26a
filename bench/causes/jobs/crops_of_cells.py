"""Cells under the microscope: every cell that was found is cut out of the feature map. On one slide there is a tumour."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.ops import roi_align

AT_MOST = 256 if os.environ.get("MENDED") else None
CELLS = [40, 62, 35, 88, 51, 3600, 47, 70]


class Backbone(nn.Sequential):
    def __init__(self, c):
        super().__init__(
            nn.Conv2d(3, c, 7, stride=2, padding=3), nn.BatchNorm2d(c), nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(),
        )  # fmt: skip


class MaskHead(nn.Module):
    """An outline for each cell, as in Mask R-CNN."""

    def __init__(self, c, layers=3):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(layers))
        self.up = nn.ConvTranspose2d(c, c, 2, 2)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, crops):
        for conv in self.convs:
            crops = F.relu(conv(crops))
        return self.out(F.relu(self.up(crops)))


class Segmenter(nn.Module):
    def __init__(self, c=64, crop=14):
        super().__init__()
        self.backbone, self.masks, self.crop = Backbone(c), MaskHead(c), crop
        self.kind = nn.Sequential(
            nn.Flatten(), nn.Linear(c * crop * crop, 64), nn.ReLU(), nn.Linear(64, 3)
        )

    def forward(self, slide, boxes):
        features = self.backbone(slide)
        crops = roi_align(features, [boxes], self.crop, spatial_scale=0.5, sampling_ratio=2)
        return self.masks(crops).squeeze(1), self.kind(crops)

    def loss(self, slide, boxes, outlines, kinds):
        masks, scores = self(slide, boxes)
        return F.binary_cross_entropy_with_logits(masks, outlines) + F.cross_entropy(scores, kinds)


class Slides(torch.utils.data.Dataset):
    def __len__(self):
        return len(CELLS)

    def __getitem__(self, n):
        g = torch.Generator().manual_seed(n)
        count = min(CELLS[n], AT_MOST or CELLS[n])
        corner = torch.rand(count, 2, generator=g) * 400
        boxes = torch.cat([corner, corner + 12 + torch.rand(count, 2, generator=g) * 30], 1)
        outlines = torch.rand(count, 28, 28, generator=g).round()
        return (
            torch.rand(3, 448, 448, generator=g),
            boxes,
            outlines,
            torch.randint(3, (count,), generator=g),
        )


def main():
    model = Segmenter().cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for epoch in range(1):
        # A slide at a time: the number of its cells is never the same.
        for slide, *targets in torch.utils.data.DataLoader(Slides(), batch_size=None):
            loss = model.loss(slide[None].cuda(), *(t.cuda() for t in targets))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(epoch, loss.item())


main()
