"""How much noise should the denoising autoencoder of spectra see? One experiment for each level."""

import os
from dataclasses import dataclass, field

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


@dataclass
class Experiment:
    sigma: float
    losses: list = field(default_factory=list)
    net: nn.Module = None
    optimizer: torch.optim.Optimizer = None

    def prepare(self):
        self.net = nn.Sequential(
            nn.Linear(2000, 4096), nn.LeakyReLU(),
            nn.Linear(4096, 3072), nn.LeakyReLU(),
            nn.Linear(3072, 4096), nn.LeakyReLU(),
            nn.Linear(4096, 2000),
        ).cuda()  # fmt: skip
        self.optimizer = torch.optim.RMSprop(self.net.parameters(), lr=1e-4)

    def run(self, steps=4):
        self.prepare()
        for _ in range(steps):
            clean = torch.rand(256, 2000, device="cuda")
            noisy = clean + self.sigma * torch.randn_like(clean)
            loss = nn.functional.mse_loss(self.net(noisy), clean)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
        if MENDED:
            self.net = self.optimizer = None
        return self


class Study:
    def __init__(self, levels):
        self.experiments = {sigma: Experiment(sigma) for sigma in levels}

    def run(self):
        for sigma, experiment in self.experiments.items():
            experiment.run()
            print(f"sigma {sigma}: {len(experiment.losses)} steps")

    def best(self):
        return min(self.experiments.values(), key=lambda e: e.losses[-1]).sigma


study = Study([0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
study.run()
study.best()
