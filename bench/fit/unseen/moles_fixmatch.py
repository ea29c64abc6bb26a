"""Moles with few labels: FixMatch with a Wide ResNet and its EMA, weak and strong views of seven times as many unlabelled pictures, cosine, Nesterov."""

import math
from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class BasicBlock(nn.Module):
    def __init__(self, in_planes, out_planes, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_planes, momentum=0.001)
        self.conv1 = nn.Conv2d(in_planes, out_planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_planes, momentum=0.001)
        self.conv2 = nn.Conv2d(out_planes, out_planes, 3, 1, 1, bias=False)
        self.equal = in_planes == out_planes
        self.shortcut = (
            None if self.equal else nn.Conv2d(in_planes, out_planes, 1, stride, bias=False)
        )

    def forward(self, x):
        out = F.leaky_relu(self.bn1(x), 0.1)
        skip = x if self.equal else self.shortcut(out)
        out = self.conv2(F.leaky_relu(self.bn2(self.conv1(out)), 0.1))
        return out + skip


class WideResNet(nn.Module):
    def __init__(self, num_classes, depth=28, widen=2):
        super().__init__()
        n = (depth - 4) // 6
        planes = [16, 16 * widen, 32 * widen, 64 * widen]
        layers = OrderedDict(stem=nn.Conv2d(3, planes[0], 3, 1, 1, bias=False))
        for s in range(3):
            for i in range(n):
                a, stride = (planes[s], 1 + (s > 0)) if i == 0 else (planes[s + 1], 1)
                layers[f"block{s + 1}_{i}"] = BasicBlock(a, planes[s + 1], stride)
        self.features = nn.Sequential(layers)
        self.bn = nn.BatchNorm2d(planes[3], momentum=0.001)
        self.fc = nn.Linear(planes[3], num_classes)

    def forward(self, x):
        out = F.leaky_relu(self.bn(self.features(x)), 0.1)
        return self.fc(F.adaptive_avg_pool2d(out, 1).flatten(1))


class ModelEMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            if v.dtype.is_floating_point:
                self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)
            else:
                self.shadow[k].copy_(v)


def weak(img):
    return img.flip(-1) if torch.rand(()) < 0.5 else img


def strong(img):
    img = weak(img) * (0.5 + torch.rand(())) + 0.2 * torch.randn(())
    y, x = torch.randint(0, 32, (2,))
    img = img.clone()
    img[:, y : y + 16, x : x + 16] = 0
    return img


class Moles(Dataset):
    def __init__(self, n, labelled):
        self.images = torch.randn(n, 3, 48, 48, generator=torch.Generator().manual_seed(n))
        self.labelled = labelled

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        img = self.images[i]
        return (weak(img), i % 7) if self.labelled else (weak(img), strong(img))


def interleave(x, size):
    s = list(x.shape)
    return x.reshape([-1, size] + s[1:]).transpose(0, 1).reshape([-1] + s[1:])


def de_interleave(x, size):
    s = list(x.shape)
    return x.reshape([size, -1] + s[1:]).transpose(0, 1).reshape([-1] + s[1:])


def main(batch=32, mu=7, threshold=0.95, steps=5, total=2**20):
    torch.manual_seed(250)
    model = WideResNet(7).cuda()
    ema = ModelEMA(model, 0.999)
    decay = [p for n, p in model.named_parameters() if "bn" not in n and "bias" not in n]
    rest = [p for n, p in model.named_parameters() if "bn" in n or "bias" in n]
    optimizer = torch.optim.SGD(
        [{"params": decay, "weight_decay": 5e-4}, {"params": rest, "weight_decay": 0.0}],
        lr=0.03,
        momentum=0.9,
        nesterov=True,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: math.cos(7 * math.pi * s / (16 * total))
    )
    labelled = iter(DataLoader(Moles(280, True), batch, shuffle=True))
    unlabelled = iter(DataLoader(Moles(1200, False), batch * mu, shuffle=True))
    for step in range(steps):
        x, y = next(labelled)
        uw, us = next(unlabelled)
        inputs = interleave(torch.cat([x, uw, us]), 2 * mu + 1).cuda()
        logits = de_interleave(model(inputs), 2 * mu + 1)
        lx, (lw, ls) = logits[:batch], logits[batch:].chunk(2)
        supervised = F.cross_entropy(lx, y.cuda())
        confidence, pseudo = lw.detach().softmax(-1).max(-1)
        mask = confidence.ge(threshold).float()
        consistency = (F.cross_entropy(ls, pseudo, reduction="none") * mask).mean()
        (supervised + consistency).backward()
        optimizer.step()
        scheduler.step()
        ema.update(model)
        model.zero_grad()
        print(
            f"{step} Lx {supervised.item():.3f} Lu {consistency.item():.3f} mask {mask.mean():.2f}"
        )


if __name__ == "__main__":
    main()
