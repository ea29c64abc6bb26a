"""A data set caches its decoded images, by number, on the GPU."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MENDED = os.environ.get("MENDED")


class Photos(Dataset):
    """Whole photos; each access takes another crop."""

    def __init__(self):
        self.cache = {}

    def __len__(self):
        return 480

    def photo(self, number):
        if number not in self.cache:
            image = torch.empty(3, 512, 512).uniform_()
            self.cache[number] = image if MENDED else image.cuda()
        return self.cache[number]

    def __getitem__(self, number):
        y, x = torch.randint(0, 512 - 96, (2,)).tolist()
        return self.photo(number)[:, y : y + 96, x : x + 96].cuda(), number % 20


class Residual(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return x + self.inside(x)


def conv_mixer(width=192, depth=6):
    blocks = [
        nn.Sequential(
            Residual(nn.Sequential(
                nn.Conv2d(width, width, 7, groups=width, padding=3), nn.GELU(), nn.BatchNorm2d(width),
            )),
            nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width),
        )
        for _ in range(depth)
    ]  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(3, width, 8, 8), nn.GELU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(width, 20),
    )  # fmt: skip


model = conv_mixer().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for crops, label in DataLoader(Photos(), batch_size=16, shuffle=True):
    loss = nn.functional.cross_entropy(model(crops), label.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
