"""Architectures by regularized evolution. The oldest network dies in every round, but history remembers it, with weights and momentum."""

import os
import random
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


@dataclass
class Individual:
    genes: dict
    model: nn.Module = None
    optimizer: torch.optim.Optimizer = None
    losses: list = field(default_factory=list)

    @property
    def fitness(self):
        return -self.losses[-1]

    def build(self):
        width, layers = self.genes["width"], [nn.Linear(90, self.genes["width"])]
        for _ in range(self.genes["depth"]):
            layers += [ACTIVATIONS[self.genes["activation"]](), nn.Linear(width, width)]
        self.model = nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, 1)).cuda()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), 1e-3, momentum=self.genes["momentum"]
        )

    def train(self, data):
        for x, year in data:
            loss = nn.functional.mse_loss(self.model(x.cuda()).squeeze(1), year.cuda())
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())

    def bury(self):
        if MENDED:
            self.model = self.optimizer = None


class Evolution:
    """Real et al.: a tournament for who has a child, and age for who goes."""

    def __init__(self, data, population=5, tournament=3, seed=0):
        self.data, self.size, self.tournament = data, population, tournament
        self.rng = random.Random(seed)
        self.population, self.history = deque(), []

    def genes(self):
        return dict(
            width=self.rng.choice((1024, 1280, 1536)), depth=self.rng.randint(2, 3),
            activation=self.rng.choice(list(ACTIVATIONS)), momentum=self.rng.choice((0.8, 0.9)),
        )  # fmt: skip

    def mutated(self, genes):
        name = self.rng.choice(list(genes))
        return {**genes, name: self.genes()[name]}

    def add(self, genes):
        individual = Individual(genes)
        individual.build()
        individual.train(self.data)
        individual.optimizer.zero_grad(set_to_none=True)
        self.population.append(individual)
        self.history.append(individual)

    def run(self, rounds):
        while len(self.population) < self.size:
            self.add(self.genes())
        for _ in range(rounds):
            parent = max(
                self.rng.sample(list(self.population), self.tournament), key=lambda i: i.fitness
            )
            self.add(self.mutated(parent.genes))
            self.population.popleft().bury()
        return max(self.history, key=lambda individual: individual.fitness)


songs = [(torch.randn(256, 90), torch.rand(256)) for _ in range(3)]
evolution = Evolution(songs)
best = evolution.run(rounds=25)
print(len(evolution.history), "networks; the best:", best.genes, best.fitness)
