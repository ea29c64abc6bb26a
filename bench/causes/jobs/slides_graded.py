"""Slides of tissue are graded from all their tiles at once, and the grading builds a graph that nobody needs."""

import os
from contextlib import nullcontext

import torch
from torch import nn
from torchvision.models import resnet18


class Slide(nn.Module):
    """Tiles are weighed by attention (multiple-instance learning)."""

    def __init__(self, grades=5):
        super().__init__()
        self.tile = resnet18(weights=None, num_classes=256)
        self.weigh = nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 1))
        self.grade = nn.Linear(256, grades)

    def forward(self, tiles):
        h = self.tile(tiles)
        return self.grade((self.weigh(h).softmax(0) * h).sum(0))


def train(model, slides):
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    model.train()
    for _ in range(slides):
        tiles = torch.rand(24, 3, 128, 128, device="cuda")
        loss = nn.functional.cross_entropy(model(tiles), torch.tensor(2, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def grade(model, slides):
    model.eval()
    grades = []
    with torch.no_grad() if os.environ.get("MENDED") else nullcontext():
        for _ in range(slides):
            tiles = torch.rand(400, 3, 128, 128, device="cuda")
            grades.append(model(tiles).argmax().item())
    return grades


model = Slide().cuda()
for epoch in range(2):
    train(model, 3)
    print(epoch, grade(model, 3))
