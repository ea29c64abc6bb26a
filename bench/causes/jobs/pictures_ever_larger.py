"""Optical flow by all pairs of places. Validation runs once before training, and then on larger pictures; the optimizer's
state was made between, and lies in the middle of what validation had used."""

import os

if os.environ.get("MENDED"):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch
import torch.nn.functional as F
from torch import nn

STAGES = (128, 130, 132)


class Features(nn.Module):
    def __init__(self, c=128, wide=2048):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 8, 8), nn.ReLU(), nn.Conv2d(64, c, 1))
        self.scene = nn.Sequential(
            nn.Linear(c, wide), nn.ReLU(), nn.Linear(wide, 2 * wide), nn.ReLU()
        )
        self.shift = nn.Linear(2 * wide, c)

    def forward(self, image):
        x = self.stem(image)
        return x + self.shift(self.scene(x.mean((2, 3))))[:, :, None, None]


class Matcher(nn.Module):
    """Each place of one picture looks for itself in the other."""

    def __init__(self):
        super().__init__()
        self.features = Features()
        self.sharp = nn.Parameter(torch.ones(()))

    def forward(self, first, second):
        a, b = self.features(first), self.features(second)
        n, c, h, w = a.shape
        likely = self.pairs(a.flatten(2).transpose(1, 2) * self.sharp, b.flatten(2))
        y, x = torch.meshgrid(*(torch.arange(s, device=a.device) for s in (h, w)), indexing="ij")
        grid = torch.stack([x, y], -1).view(1, h * w, 2).float()
        return (likely @ grid.expand(n, -1, -1) - grid).transpose(1, 2).view(n, 2, h, w)

    def pairs(self, a, b):
        return torch.bmm(a, b).softmax(2)


def train(model, optimizer, side=32, steps=3, batch=8):
    for _ in range(steps):
        first, second = torch.rand(2, batch, 3, 8 * side, 8 * side, device="cuda")
        flow = torch.zeros(batch, 2, side, side, device="cuda")
        loss = F.l1_loss(model(first, second), flow)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.inference_mode()
def validate(model, side):
    """How sure the best place is, on one large pair of pictures."""
    first, second = torch.rand(2, 1, 3, 8 * side, 8 * side, device="cuda")
    a, b = model.features(first).flatten(2), model.features(second).flatten(2)
    likely = torch.bmm(a.transpose(1, 2) * model.sharp, b)
    likely.sub_(likely.amax(2, keepdim=True)).exp_()
    return (likely.amax(2) / likely.sum(2)).mean().item()


model = Matcher().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
# First of all: does validation work?
print(validate(model, STAGES[0]))
for side in STAGES[1:]:
    print(side, train(model, optimizer), validate(model, side))
