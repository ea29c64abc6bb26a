"""A robot's particles with a map each. Those that survive lie between the holes of those that did not."""

import os
import random

import torch

MENDED = os.environ.get("MENDED")
SIDE = 1250


class Swarm:
    def __init__(self, count):
        if MENDED:
            self.maps = torch.zeros(count, SIDE, SIDE, device="cuda")
        else:
            self.maps = [torch.zeros(SIDE, SIDE, device="cuda") for _ in range(count)]

    def observe(self):
        for grid in self.maps:
            a, b = random.randrange(SIDE - 50), random.randrange(SIDE - 50)
            grid[a : a + 50, b : b + 50] += 0.8

    def resample(self, count):
        chosen = sorted(random.sample(range(len(self.maps)), count))
        self.maps = self.maps[chosen] if MENDED else [self.maps[n] for n in chosen]

    def close_loop(self, poses=18_000):
        """One dense system over all poses."""
        system = torch.zeros(poses, poses, device="cuda")
        system.diagonal().add_(1e-3)
        return system


random.seed(1)
with torch.inference_mode():
    swarm = Swarm(200)
    swarm.observe()
    swarm.resample(80)
    swarm.observe()
    print(swarm.close_loop().shape, len(swarm.maps))
