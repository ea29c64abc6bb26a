"""TD(λ) with eligibility traces, on screens of many games at once. The gradients that go into the traces are asked for with a graph, by a copied line."""

import os

import torch
from torch import nn

GRAPH = not os.environ.get("MENDED")


class Games:
    """Thirty-two of them, seen as four small screens each."""

    def __init__(self, count=32, side=72):
        self.count, self.side = count, side

    def reset(self):
        return torch.rand(self.count, 4, self.side, self.side, device="cuda")

    def step(self, screens):
        new = torch.roll(screens, 1, 1)
        new[:, 0] = torch.rand(self.count, self.side, self.side, device="cuda")
        return new, torch.rand(self.count, device="cuda")


class Value(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(4, 32, 5, 1, 2), nn.SiLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.SiLU(),
            nn.Conv2d(32, 64, 3, 2, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
            nn.Linear(1024, 1), nn.Flatten(0),
        )  # fmt: skip


class Learner:
    def __init__(self, gamma=0.99, lam=0.9, rate=1e-4):
        self.value = Value().cuda()
        self.weights = list(self.value.parameters())
        self.gamma, self.lam, self.rate = gamma, lam, rate
        self.forget()

    def forget(self):
        self.traces = [torch.zeros_like(w) for w in self.weights]

    def learn(self, screens, reward, following):
        now = self.value(screens)
        with torch.no_grad():
            delta = reward + self.gamma * self.value(following) - now
        slopes = torch.autograd.grad(now.mean(), self.weights, create_graph=GRAPH)
        self.traces = [self.gamma * self.lam * e + s for e, s in zip(self.traces, slopes)]
        with torch.no_grad():
            for w, e in zip(self.weights, self.traces):
                w += self.rate * delta.mean() * e
        return delta.abs().mean().item()


games, learner = Games(), Learner()
for episode in range(2):
    screens = games.reset()
    learner.forget()
    for moment in range(40):
        following, reward = games.step(screens)
        surprise = learner.learn(screens, reward, following)
        screens = following
    print(episode, surprise)
