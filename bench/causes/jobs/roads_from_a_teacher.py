"""Distils a road segmenter; what the teacher says about an image is asked for once."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = os.environ.get("MENDED")
CLASSES = 19


class Streets(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        return i, torch.randn(3, 128, 256)


def segmenter(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, CLASSES, 1),
        nn.Upsample(scale_factor=2, mode="bilinear"),
    )


class Teacher:
    def __init__(self):
        self.net = segmenter(160).cuda().eval()
        self.said = {}

    @torch.no_grad()
    def __call__(self, indices, images):
        missing = [n for n, i in enumerate(indices) if i not in self.said]
        if missing:
            soft = torch.softmax(self.net(images[missing]) / 2, 1)
            for n, row in zip(missing, soft):
                self.said[indices[n]] = row.cpu() if MENDED else row
        return torch.stack([self.said[i].cuda() for i in indices])


teacher, student = Teacher(), segmenter(32).cuda()
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
for epoch in range(2):
    for indices, images in DataLoader(Streets(), batch_size=10, shuffle=True):
        images = images.cuda()
        target = teacher(indices.tolist(), images)
        loss = F.kl_div(F.log_softmax(student(images) / 2, 1), target, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
