"""Face recognition with an angular margin over every one of 400 thousand identities."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")
IDENTITIES = 400_000


class Unit(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.main = nn.Sequential(
            nn.BatchNorm2d(inner), nn.Conv2d(inner, outer, 3, padding=1, bias=False),
            nn.BatchNorm2d(outer), nn.PReLU(outer), nn.Conv2d(outer, outer, 3, 2, 1, bias=False),
        )  # fmt: skip
        self.side = nn.Conv2d(inner, outer, 1, 2, bias=False)

    def forward(self, x):
        return self.main(x) + self.side(x)


class Margin(nn.Module):
    """ArcFace."""

    def __init__(self, width, scale=64.0, margin=0.5):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(IDENTITIES, width) * 0.01)
        self.scale, self.margin = scale, margin

    def forward(self, x, label):
        weight = self.weight
        if MENDED:  # some of the identities, those of the batch among them
            some = torch.cat([label, torch.randint(0, IDENTITIES, (20_000,), device=x.device)])
            weight, label = weight[some], torch.arange(len(label), device=x.device)
        cosine = F.linear(F.normalize(x), F.normalize(weight)).clamp(-1 + 1e-6, 1 - 1e-6)
        angle = cosine.acos()
        chosen = F.one_hot(label, len(weight)).bool() if MENDED else self.chosen(label, cosine)
        moved = torch.where(chosen, (angle + self.margin).cos(), cosine)
        return F.cross_entropy(self.scale * moved, label)

    def chosen(self, label, like):
        return torch.zeros_like(like, dtype=torch.bool).scatter_(1, label[:, None], True)


body = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2, 1), Unit(16, 32), Unit(32, 64), Unit(64, 128), nn.Flatten(),
    nn.Linear(128 * 49, 128), nn.BatchNorm1d(128),
).cuda()  # fmt: skip
margin = Margin(128).cuda()
optimizer = torch.optim.SGD([*body.parameters(), *margin.parameters()], lr=0.1)
for step in range(3):
    faces = torch.randn(384, 3, 112, 112, device="cuda")
    label = torch.randint(0, IDENTITIES, (384,), device="cuda")
    loss = margin(body(faces), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
