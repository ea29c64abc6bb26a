"""Fruits on trees: a small YOLO with CSP blocks, anchor-free, targets on a grid, accumulated to a nominal batch of 64."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Conv(nn.Module):
    def __init__(self, c1, c2, k=1, s=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2, bias=False)
        self.bn = nn.BatchNorm2d(c2, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, c, shortcut=True):
        super().__init__()
        self.cv1, self.cv2, self.add = Conv(c, c, 3), Conv(c, c, 3), shortcut

    def forward(self, x):
        return x + self.cv2(self.cv1(x)) if self.add else self.cv2(self.cv1(x))


class C2f(nn.Module):
    def __init__(self, c1, c2, n=1, shortcut=False):
        super().__init__()
        self.c = c2 // 2
        self.cv1, self.cv2 = Conv(c1, c2), Conv((2 + n) * self.c, c2)
        self.m = nn.ModuleList(Bottleneck(self.c, shortcut) for _ in range(n))

    def forward(self, x):
        y = list(self.cv1(x).chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        return self.cv2(torch.cat(y, 1))


class SPPF(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.cv1, self.cv2, self.pool = Conv(c, c // 2), Conv(2 * c, c), nn.MaxPool2d(5, 1, 2)

    def forward(self, x):
        x = self.cv1(x)
        a = self.pool(x)
        b = self.pool(a)
        return self.cv2(torch.cat([x, a, b, self.pool(b)], 1))


class Yolo(nn.Module):
    def __init__(self, nc=12, w=(32, 64, 128, 256, 384)):
        super().__init__()
        self.nc = nc
        self.stem = nn.Sequential(
            Conv(3, w[0], 3, 2), Conv(w[0], w[1], 3, 2), C2f(w[1], w[1], 1, True)
        )
        self.p3 = nn.Sequential(Conv(w[1], w[2], 3, 2), C2f(w[2], w[2], 2, True))
        self.p4 = nn.Sequential(Conv(w[2], w[3], 3, 2), C2f(w[3], w[3], 2, True))
        self.p5 = nn.Sequential(Conv(w[3], w[4], 3, 2), C2f(w[4], w[4], 1, True), SPPF(w[4]))
        self.t4, self.t3 = C2f(w[4] + w[3], w[3]), C2f(w[3] + w[2], w[2])
        self.d3, self.b4 = Conv(w[2], w[2], 3, 2), C2f(w[2] + w[3], w[3])
        self.heads = nn.ModuleList(
            nn.Sequential(Conv(c, 96, 3), Conv(96, 96, 3), nn.Conv2d(96, 5 + nc, 1))
            for c in (w[2], w[3], w[4])
        )

    def forward(self, x):
        p3 = self.p3(self.stem(x))
        p4 = self.p4(p3)
        p5 = self.p5(p4)
        n4 = self.t4(torch.cat([F.interpolate(p5, scale_factor=2), p4], 1))
        n3 = self.t3(torch.cat([F.interpolate(n4, scale_factor=2), p3], 1))
        n4 = self.b4(torch.cat([self.d3(n3), n4], 1))
        return [head(f) for head, f in zip(self.heads, (n3, n4, p5))]


def compute_loss(outputs, targets, nc):
    total = 0.0
    for out, (obj, box, cls) in zip(outputs, targets):
        out = out.permute(0, 2, 3, 1).float()
        weight = obj[..., None]
        xy, wh = out[..., :2].sigmoid(), out[..., 2:4].exp().clamp(max=1e3)
        total = total + ((xy - box[..., :2]) ** 2 * weight).sum() / weight.sum()
        total = total + ((wh - box[..., 2:]).abs() * weight).sum() / weight.sum()
        total = total + F.binary_cross_entropy_with_logits(out[..., 4], obj)
        onehot = F.one_hot(cls, nc).float()
        total = (
            total
            + (
                F.binary_cross_entropy_with_logits(out[..., 5:], onehot, reduction="none") * weight
            ).mean()
        )
    return total


def make_targets(n, size, nc, device):
    out = []
    for stride in (8, 16, 32):
        g = size // stride
        obj = (torch.rand(n, g, g, device=device) < 0.03).float()
        out.append(
            (
                obj,
                torch.rand(n, g, g, 4, device=device),
                torch.randint(0, nc, (n, g, g), device=device),
            )
        )
    return out


def main(batch=16, size=640, nominal=64, iters=12):
    device = torch.device("cuda")
    model = Yolo().to(device)
    accumulate = max(round(nominal / batch), 1)
    g0, g1, g2 = [], [], []
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            g1.append(m.weight)
        elif hasattr(m, "weight") and isinstance(m.weight, nn.Parameter):
            g0.append(m.weight)
        if hasattr(m, "bias") and isinstance(m.bias, nn.Parameter):
            g2.append(m.bias)
    optimizer = torch.optim.SGD(g2, lr=0.01, momentum=0.937, nesterov=True)
    optimizer.add_param_group({"params": g0, "weight_decay": 5e-4})
    optimizer.add_param_group({"params": g1})
    lf = lambda x: ((1 - math.cos(x * math.pi / iters)) / 2) * (0.1 - 1) + 1
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lf)
    scaler = torch.amp.GradScaler("cuda")
    optimizer.zero_grad()
    for ni in range(iters):
        imgs = (
            torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8).to(device).float()
            / 255
        )
        with torch.autocast("cuda"):
            pred = model(imgs)
        loss = compute_loss(pred, make_targets(batch, size, 12, device), 12) * batch / nominal
        scaler.scale(loss).backward()
        if (ni + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scheduler.step()
            print(ni, loss.item())


if __name__ == "__main__":
    main()
