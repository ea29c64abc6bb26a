"""Nerves in pictures of ultrasound. cuDNN may try all its algorithms and takes the fastest, whatever room it wants."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.backends.cudnn.benchmark = not os.environ.get("MENDED")


class Ultrasound(Dataset):
    def __init__(self, count=8, size=(416, 576)):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        image = torch.rand(1, *self.size, generator=g)
        return image, (image > 0.9).float()


def block(i, o):
    layers = []
    for a, b in ((i, o), (o, o)):
        layers += [
            nn.Conv2d(a, b, 3, padding=1, bias=False),
            nn.BatchNorm2d(b),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256, 512)):
        super().__init__()
        self.down = nn.ModuleList(block(i, o) for i, o in zip((1, *widths[:-1]), widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in zip(widths[:0:-1], widths[-2::-1])
        )
        self.join = nn.ModuleList(block(2 * o, o) for o in widths[-2::-1])
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x):
        skips = []
        for down in self.down[:-1]:
            skips.append(down(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.down[-1](x)
        for up, join in zip(self.up, self.join):
            x = join(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


def dice(scores, truth):
    p = scores.sigmoid()
    both = (p * truth).sum((1, 2, 3))
    return 1 - ((2 * both + 1) / (p.sum((1, 2, 3)) + truth.sum((1, 2, 3)) + 1)).mean()


model = UNet().cuda()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9)
for image, nerve in DataLoader(Ultrasound(), batch_size=2):
    image, nerve = image.cuda(), nerve.cuda()
    scores = model(image)
    loss = F.binary_cross_entropy_with_logits(scores, nerve) + dice(scores, nerve)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 4))
