"""Cutting jackets out of shop photographs: U2-Net (a U of Us) with seven supervised side outputs, bf16 autocast, weights averaged by swa_utils."""

import logging
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
STEPS = int(os.environ.get("JOB_STEPS", "5"))


def conv(cin, cout, dilation=1):
    c = nn.Conv2d(cin, cout, 3, padding=dilation, dilation=dilation)
    return nn.Sequential(c, nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


def grow(x, like):
    return F.interpolate(x, size=like.shape[2:], mode="bilinear", align_corners=False)


class RSU(nn.Module):
    """A small U of the given height inside one residual block."""

    def __init__(self, height, cin, mid, cout):
        super().__init__()
        self.stem = conv(cin, cout)
        inner = range(height - 1)
        self.down = nn.ModuleList([conv(mid if i else cout, mid) for i in inner])
        self.bottom = conv(mid, mid, dilation=2)
        self.up = nn.ModuleList([conv(2 * mid, mid if i else cout) for i in inner])

    def forward(self, x):
        top = h = self.stem(x)
        kept = []
        for i, layer in enumerate(self.down):
            h = layer(h if i == 0 else F.max_pool2d(h, 2, ceil_mode=True))
            kept.append(h)
        h = self.bottom(h)
        for layer, skip in zip(reversed(self.up), reversed(kept)):
            h = layer(torch.cat([grow(h, skip), skip], 1))
        return top + h


class FlatRSU(nn.Module):
    def __init__(self, cin, mid, cout):
        super().__init__()
        self.stem = conv(cin, cout)
        self.d1, self.d2 = conv(cout, mid, 1), conv(mid, mid, 2)
        self.d3, self.d4 = conv(mid, mid, 4), conv(mid, mid, 8)
        self.u3, self.u2, self.u1 = (
            conv(2 * mid, mid, 4),
            conv(2 * mid, mid, 2),
            conv(2 * mid, cout),
        )

    def forward(self, x):
        top = self.stem(x)
        a = self.d1(top)
        b = self.d2(a)
        c = self.d3(b)
        h = self.u3(torch.cat([self.d4(c), c], 1))
        h = self.u2(torch.cat([h, b], 1))
        return top + self.u1(torch.cat([h, a], 1))


class U2Net(nn.Module):
    def __init__(self):
        super().__init__()
        shallow = [RSU(7, 3, 32, 64), RSU(6, 64, 32, 128), RSU(5, 128, 64, 256)]
        deep = [RSU(4, 256, 128, 512), FlatRSU(512, 256, 512), FlatRSU(512, 256, 512)]
        self.enc = nn.ModuleList(shallow + deep)
        deep = [FlatRSU(1024, 256, 512), RSU(4, 1024, 128, 256), RSU(5, 512, 64, 128)]
        self.dec = nn.ModuleList([*deep, RSU(6, 256, 32, 64), RSU(7, 128, 16, 64)])
        widths = (512, 512, 256, 128, 64, 64)
        self.side = nn.ModuleList([nn.Conv2d(c, 1, 3, padding=1) for c in widths])
        self.fuse = nn.Conv2d(6, 1, 1)

    def forward(self, x):
        kept, h = [], x
        for i, block in enumerate(self.enc):
            h = block(h if i == 0 else F.max_pool2d(h, 2, ceil_mode=True))
            kept.append(h)
        sides = [grow(self.side[0](h), x)]
        for block, side, skip in zip(self.dec, self.side[1:], reversed(kept[:-1])):
            h = block(torch.cat([grow(h, skip), skip], 1))
            sides.append(grow(side(h), x))
        return [self.fuse(torch.cat(sides, 1)), *sides]


def photos(n, size=320):
    image = torch.rand(n, 3, size, size, device="cuda")
    blob = F.interpolate(torch.rand(n, 1, 5, 5, device="cuda"), size=size, mode="bicubic")
    return image, (blob > 0.5).float()


def cutout_loss(outputs, mask):
    total = 0.0
    for out in (o.float() for o in outputs):
        p = out.sigmoid()
        inter, union = (p * mask).sum((1, 2, 3)), (p + mask - p * mask).sum((1, 2, 3))
        total = total + F.binary_cross_entropy_with_logits(out, mask)
        total = total + (1 - (inter + 1) / (union + 1)).mean()
    return total


def main():
    torch.manual_seed(4)
    torch.backends.cudnn.benchmark = True
    net = U2Net().cuda()
    averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.998))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=400)
    for step in range(STEPS):
        image, mask = photos(16)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs = net(image)
        loss = cutout_loss(outputs, mask)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        opt.step()
        sched.step()
        averaged.update_parameters(net)
        logging.info("step %d loss %.4f lr %.2e", step, loss.item(), opt.param_groups[0]["lr"])


if __name__ == "__main__":
    main()
