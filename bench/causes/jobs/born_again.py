"""Born-again networks: each generation learns from the one before, and remembers its teacher, who remembers theirs."""

import os

import torch
from torch import nn
from torch.nn import functional as F


class Generation:
    def __init__(self, teacher=None):
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(784, 3000),
            nn.GELU(),
            nn.Linear(3000, 3000),
            nn.GELU(),
            nn.Linear(3000, 10),
        ).cuda()
        self.teacher = teacher

    def raise_up(self, batches=4):
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        for _ in range(batches):
            x, y = torch.rand(64, 1, 28, 28, device="cuda"), torch.randint(10, (64,), device="cuda")
            scores = self.net(x)
            loss = F.cross_entropy(scores, y)
            if self.teacher is not None:
                with torch.no_grad():
                    told = self.teacher.net(x).softmax(-1)
                loss = loss + F.kl_div(scores.log_softmax(-1), told, reduction="batchmean")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if os.environ.get("MENDED"):
            self.teacher = None
        return self


line = None
for generation in range(14):
    line = Generation(line).raise_up()
