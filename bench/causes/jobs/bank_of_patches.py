"""Scratches on lenses, by PatchCore: a bank of what patches of good lenses look like. All patches go to the bank before it is thinned out."""

import os

import timm
import torch
import torch.nn.functional as F

MENDED = os.environ.get("MENDED")


class PatchCore:
    def __init__(self, share=0.004):
        self.body = timm.create_model("resnet18", features_only=True, out_indices=(1, 2, 3))
        self.body = self.body.cuda().eval()
        self.share, self.bank = share, []

    @torch.inference_mode()
    def patches(self, image):
        """One row for each place, from three layers."""
        low, middle, high = self.body(image)
        size = low.shape[-2:]
        maps = [F.avg_pool2d(f, 3, 1, 1) for f in (low, middle, high)]
        maps = [F.interpolate(f, size, mode="bilinear") for f in maps]
        return torch.cat(maps, 1).flatten(2).transpose(1, 2).flatten(0, 1)

    def thinned(self, rows):
        count = max(1, int(len(rows) * self.share))
        return rows[torch.randperm(len(rows), device=rows.device)[:count]]

    def fit(self, loader):
        for image in loader:
            rows = self.patches(image.cuda())
            self.bank.append(self.thinned(rows) if MENDED else rows)
        bank = torch.cat(self.bank)
        self.bank = bank if MENDED else self.thinned(bank)

    @torch.inference_mode()
    def score(self, image):
        distance = torch.cdist(self.patches(image.cuda()), self.bank)
        return distance.min(1).values.view(len(image), -1).amax(1)


def lenses(batches, batch=8, side=256):
    for _ in range(batches):
        yield torch.rand(batch, 3, side, side)


detector = PatchCore()
detector.fit(lenses(40))
for image in lenses(2, batch=2):
    print(detector.score(image).shape)
