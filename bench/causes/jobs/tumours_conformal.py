"""Conformal threshold for a tumour segmentation: calibrates on scans set aside."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
CLASSES = 10


def block(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = block(4, 24), block(24, 48)
        self.pool, self.up = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.join = block(72, 24)
        self.head = nn.Conv2d(24, CLASSES, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(self.pool(a))
        return self.head(self.join(torch.cat([a, self.up(b)], 1)))


def scans(n):
    for _ in range(n):
        yield torch.randn(6, 4, 256, 256), torch.randint(0, CLASSES, (6, 256, 256))


@torch.inference_mode()
def calibrate(model, alpha=0.1):
    probabilities, masks = [], []
    for scan, mask in scans(110):
        scan, mask = scan.cuda(), mask.cuda()
        p = model(scan).softmax(1)
        if MENDED:
            p = p.gather(1, mask.unsqueeze(1)).mean((1, 2, 3))
        probabilities.append(p)
        masks.append(mask.cpu())
    if MENDED:
        scores = 1 - torch.cat(probabilities)
    else:
        scores = torch.cat(
            [
                1 - p.gather(1, m.cuda().unsqueeze(1)).mean((1, 2, 3))
                for p, m in zip(probabilities, masks)
            ]
        )
    return scores.sort().values[int((1 - alpha) * len(scores))]


model = Segmenter().cuda().eval()
print("calibrated", calibrate(model).shape)
