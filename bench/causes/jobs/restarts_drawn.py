"""Warm restarts with a new Adam each. The old schedules are kept to draw the learning rate, and with them every Adam."""

import gc
import os

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR


def build(width=2560):
    return nn.Sequential(
        nn.Linear(300, width), nn.Dropout(0.2), nn.SELU(), nn.Linear(width, width), nn.SELU(),
        nn.Linear(width, width), nn.SELU(), nn.Linear(width, width), nn.SELU(), nn.Linear(width, 1),
    )  # fmt: skip


class Cycles:
    def __init__(self, model):
        self.model, self.drawn = model, []

    def run(self, steps=3):
        adam = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        schedule = OneCycleLR(adam, max_lr=1e-2, total_steps=steps + 1)
        rates = []
        for _ in range(steps):
            rows = torch.randn(128, 300, device="cuda")
            adam.zero_grad()
            self.model(rows).square().mean().backward()
            adam.step()
            schedule.step()
            rates += schedule.get_last_lr()
        self.drawn.append(rates if os.environ.get("MENDED") else schedule)


cycles = Cycles(build().cuda())
for restart in range(9):
    cycles.run()
    gc.collect()
    print("restart", restart)
