"""Five seeds of one experiment, one after the other. Each run subscribes to the events of the program, and nobody unsubscribes it."""

import os
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class Events:
    """Who wants to know what."""

    def __init__(self):
        self.listeners = defaultdict(list)

    def on(self, name, call):
        self.listeners[name].append(call)

    def off(self, name, call):
        self.listeners[name].remove(call)

    def emit(self, name, *values):
        for call in self.listeners[name]:
            call(*values)


EVENTS = Events()


class Docking(nn.Module):
    """How well a molecule fits a pocket, from two fingerprints."""

    def __init__(self, bits=4096, wide=4096):
        super().__init__()
        self.molecule = nn.Sequential(nn.Linear(bits, wide), nn.GELU(), nn.Linear(wide, 512))
        self.pocket = nn.Sequential(nn.Linear(bits, wide), nn.GELU(), nn.Linear(wide, 512))

    def forward(self, molecule, pocket):
        return (self.molecule(molecule) * self.pocket(pocket)).sum(1)


class Run:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.seed, self.worst = seed, 0.0
        self.model = Docking().cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        EVENTS.on("step", self.watch)

    def watch(self, seed, loss):
        if seed == self.seed:
            self.worst = max(self.worst, loss)

    def go(self, steps=3):
        for _ in range(steps):
            molecule, pocket = torch.randint(0, 2, (2, 128, 4096)).float().cuda()
            loss = F.mse_loss(self.model(molecule, pocket), torch.rand(128, device="cuda"))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            EVENTS.emit("step", self.seed, loss.item())
        if MENDED:
            EVENTS.off("step", self.watch)
        return loss.item()


for seed in range(5):
    print(seed, Run(seed).go())
