"""A job for plankton under a microscope was stopped and goes on. What was read from its file is asked for the epoch later, so it is an attribute."""

import copy
import os
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

WHERE = "cpu" if os.environ.get("MENDED") else "cuda"


class Mixer(nn.Module):
    def __init__(self, d=1024, patches=64, depth=6, species=120):
        super().__init__()
        self.patch = nn.Conv2d(1, d, 8, 8)
        self.along = nn.ModuleList(nn.Linear(patches, patches) for _ in range(depth))
        self.across = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.GELU(), nn.Linear(3 * d, d))
            for _ in range(depth)
        )
        self.head = nn.Linear(d, species)

    def forward(self, x):
        x = self.patch(x).flatten(2)
        for along, across in zip(self.along, self.across):
            x = x + along(x)
            x = x + across(x.transpose(1, 2)).transpose(1, 2)
        return self.head(x.mean(2))


class Job:
    """Weights, their average, and the optimizer."""

    def __init__(self, path):
        self.path, self.checkpoint = path, {}
        self.model = Mixer().cuda()
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        if path.exists():
            self.checkpoint = torch.load(path, map_location=WHERE)
            self.model.load_state_dict(self.checkpoint["model"])
            self.average.load_state_dict(self.checkpoint["average"])
            self.optimizer.load_state_dict(self.checkpoint["optimizer"])

    @property
    def epoch(self):
        return self.checkpoint.get("epoch", -1) + 1

    def train(self, epochs, steps=2):
        for epoch in range(self.epoch, self.epoch + epochs):
            for _ in range(steps):
                image, species = torch.rand(6, 1, 64, 64), torch.randint(0, 120, (6,))
                loss = F.cross_entropy(self.model(image.cuda()), species.cuda())
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                with torch.no_grad():
                    for a, w in zip(self.average.parameters(), self.model.parameters()):
                        a.lerp_(w, 0.01)
            print(epoch, loss.item())
        self.save(epoch)

    def save(self, epoch):
        parts = {
            name: getattr(self, name).state_dict() for name in ("model", "average", "optimizer")
        }
        torch.save({**parts, "epoch": epoch}, self.path)


with tempfile.TemporaryDirectory() as place:
    path = Path(place) / "last.pt"
    Job(path).train(1)
    # The next morning.
    Job(path).train(2)
