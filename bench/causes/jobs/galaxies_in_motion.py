"""Stars orbit in the field of a galaxy; places and speeds of every star at every moment stay on the GPU."""

import os
from typing import NamedTuple

import torch

KEEP_ALL = not os.environ.get("MENDED")


class Snapshot(NamedTuple):
    time: float
    place: torch.Tensor
    speed: torch.Tensor


class Galaxy:
    def __init__(self, stars, seed=0):
        g = torch.Generator(device="cuda").manual_seed(seed)
        self.place = torch.randn(stars, 3, device="cuda", generator=g)
        self.speed = torch.randn(stars, 3, device="cuda", generator=g) * 0.1

    def pull(self):
        """A logarithmic halo and a flat disc."""
        x, y, z = self.place.unbind(1)
        halo = 1 / (x * x + y * y + 2 * z * z + 0.01)
        return -self.place * halo[:, None]

    def drift_and_kick(self, dt):
        self.speed += dt / 2 * self.pull()
        self.place += dt * self.speed
        self.speed += dt / 2 * self.pull()


def simulate(galaxy, moments, dt=0.01):
    for n in range(moments):
        galaxy.drift_and_kick(dt)
        if KEEP_ALL:
            yield Snapshot(n * dt, galaxy.place.clone(), galaxy.speed.clone())
        else:
            yield Snapshot(n * dt, galaxy.place[:1000].cpu(), galaxy.speed[:1000].cpu())


history = list(simulate(Galaxy(2_000_000), 40))
drift = [float((b.place - a.place).abs().mean()) for a, b in zip(history, history[1:])]
print(len(history), sum(drift))
