"""A U-Net for segmentation, with batches that are too large."""
import torch
from torch import nn


def double(a, b):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(),
        nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.down1, self.down2 = double(3, width), double(width, 2 * width)
        self.middle = double(2 * width, 4 * width)
        self.up2, self.up1 = double(6 * width, 2 * width), double(3 * width, width)
        self.pool, self.grow = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(self.pool(a))
        c = self.middle(self.pool(b))
        x = self.up2(torch.cat([self.grow(c), b], 1))
        return self.head(self.up1(torch.cat([self.grow(x), a], 1)))


def main():
    net = UNet().cuda()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        x = torch.randn(32, 3, 256, 256, device="cuda")
        y = torch.randint(0, 2, (32, 256, 256), device="cuda")
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


main()
