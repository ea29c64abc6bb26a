"""A planner tries eighty-four films of what might happen. A few of each generation are kept where they are, between those that go; then it learns from them."""

import os

import numpy as np
import torch
from torch import nn

MENDED = os.environ.get("MENDED")
FILMS, ELITES, GENERATIONS, SIDE = 84, 10, 3, 128


class Dream:
    """A ball on a table, on the CPU; what it looks like is drawn by a decoder on the GPU."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.inward = torch.randn(2, 64, device="cuda")
        self.outward = torch.randn(64, 2 * SIDE * SIDE, device="cuda") / 8

    def play(self, pushes):
        """Where the ball is at each moment, and what that is worth."""
        places = np.clip(0.5 + 0.01 * pushes.cumsum(0).cumsum(0), 0, 1)
        return places, float(places[-1].sum())

    def film(self, places):
        """(moments, 2, SIDE, SIDE): the ball, and where it is going."""
        at = torch.as_tensor(places, dtype=torch.float32).cuda()
        return (torch.tanh(at @ self.inward) @ self.outward).view(-1, 2, SIDE, SIDE)


def generation(dream, mean, spread, moments):
    """All films of one generation, and its elites by return, best first."""
    pushes = mean + spread * dream.rng.normal(size=(FILMS, moments, 2))
    films, returns = [], []
    for push in pushes:
        places, value = dream.play(push)
        films.append(dream.film(places))
        returns.append(value)
    best = np.argsort(returns)[::-1][:ELITES]
    return [films[n] for n in best], pushes[best]


def plan(moments=72):
    dream, mean, spread = Dream(), np.zeros((moments, 2)), 1.0
    archive = (
        torch.empty(GENERATIONS, ELITES, moments, 2, SIDE, SIDE, device="cuda") if MENDED else []
    )
    for n in range(GENERATIONS):
        films, pushes = generation(dream, mean, spread, moments)
        mean, spread = pushes.mean(0), pushes.std(0)
        if MENDED:
            for room, film in zip(archive[n], films):
                room.copy_(film)
        else:
            archive.append(films)
    return archive


class Value(nn.Sequential):
    """How far along a film is."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(2, 30, 3, padding=1), nn.ReLU(), nn.Conv2d(30, 32, 3, 4, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1),
        )  # fmt: skip


archive = plan()
value = Value().cuda()
optimizer = torch.optim.Adam(value.parameters(), 1e-3)
for films in archive:
    for n in range(0, ELITES, 2):
        batch = torch.cat([*films[n : n + 2]])
        wanted = torch.linspace(0, 1, 72, device="cuda").repeat(2)
        loss = nn.functional.mse_loss(value(batch).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
