"""RCAN enlarges scans fourfold: residual groups with channel attention, L1, random crops, step decay, fp32."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class CALayer(nn.Module):
    def __init__(self, channel, reduction=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channel, channel // reduction, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(channel // reduction, channel, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return x * self.body(x)


class RCAB(nn.Module):
    def __init__(self, n_feat):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(n_feat, n_feat, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(n_feat, n_feat, 3, padding=1),
            CALayer(n_feat),
        )

    def forward(self, x):
        return self.body(x) + x


class Group(nn.Module):
    def __init__(self, n_feat, blocks):
        super().__init__()
        self.body = nn.Sequential(
            *[RCAB(n_feat) for _ in range(blocks)], nn.Conv2d(n_feat, n_feat, 3, padding=1)
        )

    def forward(self, x):
        return self.body(x) + x


class RCAN(nn.Module):
    def __init__(self, groups=5, blocks=8, n_feat=64, scale=4):
        super().__init__()
        self.head = nn.Conv2d(3, n_feat, 3, padding=1)
        self.body = nn.Sequential(
            *[Group(n_feat, blocks) for _ in range(groups)], nn.Conv2d(n_feat, n_feat, 3, padding=1)
        )
        tail = []
        while scale > 1:
            tail += [nn.Conv2d(n_feat, 4 * n_feat, 3, padding=1), nn.PixelShuffle(2)]
            scale //= 2
        self.tail = nn.Sequential(*tail, nn.Conv2d(n_feat, 3, 3, padding=1))

    def forward(self, x):
        x = self.head(x)
        return self.tail(self.body(x) + x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--patch", type=int, default=64)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--iters", type=int, default=6)
    args = ap.parse_args()
    torch.manual_seed(0)
    net = RCAN().cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, betas=(0.9, 0.999), eps=1e-8)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [200, 400], 0.5)
    scans = torch.rand(8, 3, 512, 512)
    total = 0.0
    for it in range(args.iters):
        side = 4 * args.patch
        crops = []
        for _ in range(args.batch):
            k, y, x = (torch.randint(0, n, ()).item() for n in (8, 512 - side, 512 - side))
            crops.append(scans[k, :, y : y + side, x : x + side])
        sharp = torch.stack(crops).cuda()
        small = F.interpolate(sharp, scale_factor=0.25, mode="bicubic", antialias=True)
        loss = F.l1_loss(net(small), sharp)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.item()
    print(f"mean L1 {total / args.iters:.4f}")


if __name__ == "__main__":
    main()
