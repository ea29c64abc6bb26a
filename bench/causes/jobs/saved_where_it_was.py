"""Training stops and goes on in the same night. The file was written from the GPU, and goes back to where it was."""

import os
import tempfile
from pathlib import Path

import torch
import torch.nn as nn


class GatedUnit(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.a, self.b, self.c = nn.RMSNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, 3 * d), nn.Linear(3 * d, d)  # fmt: skip

    def forward(self, x):
        h = self.norm(x)
        return x + self.c(nn.functional.silu(self.a(h)) * self.b(h))


class Session:
    def __init__(self, folder):
        self.file = Path(folder) / "night.pth"
        self.model = nn.Sequential(*[GatedUnit(1024) for _ in range(5)], nn.Linear(1024, 30)).cuda()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.resumed = None

    def save(self, epoch):
        torch.save({"epoch": epoch, "model": self.model.state_dict(), "opt": self.opt.state_dict()}, self.file)  # fmt: skip

    def resume(self):
        if os.environ.get("MENDED"):
            self.resumed = torch.load(self.file, map_location="cpu")
        else:
            self.resumed = torch.load(self.file)
        self.model.load_state_dict(self.resumed["model"])
        # The state of the optimizer starts anew: the learning rate is another one.
        return self.resumed["epoch"]

    def train(self, batches):
        for _ in range(batches):
            x, y = torch.randn(16, 1024, device="cuda"), torch.randint(30, (16,), device="cuda")
            self.opt.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(self.model(x), y).backward()
            self.opt.step()


with tempfile.TemporaryDirectory() as folder:
    evening = Session(folder)
    evening.train(2)
    evening.save(epoch=1)
    del evening
    night = Session(folder)
    print("from epoch", night.resume())
    night.train(4)
