"""Wafer maps without labels by VICReg: an own ResNet of bottlenecks, two views, variance, invariance and covariance of 4,096 dimensions, SGD, bf16 autocast."""

import torch
import torch.nn.functional as F
from torch import nn


def conv_bn(i, o, k, s=1):
    return nn.Sequential(nn.Conv2d(i, o, k, s, k // 2, bias=False), nn.BatchNorm2d(o))


class Bottleneck(nn.Module):
    def __init__(self, i, mid, o, stride):
        super().__init__()
        self.path = nn.Sequential(
            conv_bn(i, mid, 1),
            nn.ReLU(True),
            conv_bn(mid, mid, 3, stride),
            nn.ReLU(True),
            conv_bn(mid, o, 1),
        )
        self.skip = conv_bn(i, o, 1, stride) if stride > 1 or i != o else nn.Identity()

    def forward(self, x):
        return F.relu(self.path(x) + self.skip(x), inplace=True)


def trunk(depths=(2, 3, 3, 2), width=48):
    layers, i = [conv_bn(1, width, 5, 2), nn.ReLU(True)], width
    for stage, depth in enumerate(depths):
        mid = width * 2**stage
        for b in range(depth):
            layers.append(Bottleneck(i, mid, 4 * mid, 2 if b == 0 and stage else 1))
            i = 4 * mid
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), i


def expander(i, width=4096):
    return nn.Sequential(
        nn.Linear(i, width),
        nn.BatchNorm1d(width),
        nn.ReLU(True),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(True),
        nn.Linear(width, width, bias=False),
    )


def off_diagonal(m):
    n = m.shape[0]
    return m.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


def vicreg(a, b):
    inv = F.mse_loss(a, b)
    a, b = a - a.mean(0), b - b.mean(0)
    std = [torch.sqrt(v.var(0) + 1e-4) for v in (a, b)]
    var = sum(F.relu(1 - s).mean() for s in std) / 2
    cov = sum(off_diagonal(v.T @ v / (len(v) - 1)).square().sum() / v.shape[1] for v in (a, b))
    return 25 * inv + 25 * var + cov


def views(maps):
    """Wafers are round: any turn by 90 degrees, any mirror, and dies that were measured wrongly."""
    out = []
    for _ in range(2):
        v = torch.rot90(maps, int(torch.randint(0, 4, ())), dims=(2, 3))
        v = v.flip(3) if torch.rand(()) < 0.5 else v
        out.append(torch.where(torch.rand_like(v) < 0.05, torch.rand_like(v), v))
    return out


if __name__ == "__main__":
    torch.manual_seed(2)
    device = "cuda:0"
    body, dim = trunk()
    with torch.device(device):
        head = expander(dim)
    body = body.to(device)
    params = [*body.parameters(), *head.parameters()]
    sgd = torch.optim.SGD(params, lr=0.3, momentum=0.9, weight_decay=1e-6)
    for step in range(5):
        wafers = torch.rand(104, 1, 128, 128, device=device)
        one, two = views(wafers)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            za, zb = head(body(one)), head(body(two))
        loss = vicreg(za.float(), zb.float())
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        print("step", step, "loss", loss.item())
