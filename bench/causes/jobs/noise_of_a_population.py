"""Evolution strategies: a population walks in the dark around one policy. The noise of each is kept until all have reported."""

import math
import os

import torch

MENDED = os.environ.get("MENDED")
OBSERVED, ACTED, WIDTH = 376, 17, 1024
SHAPES = [(OBSERVED, WIDTH), (WIDTH,), (WIDTH, WIDTH), (WIDTH,), (WIDTH, ACTED), (ACTED,)]
SIZE = sum(math.prod(shape) for shape in SHAPES)


def act(theta, seen):
    """A multilayer perceptron whose weights are one long vector."""
    parts = theta.split([math.prod(shape) for shape in SHAPES])
    parts = [part.view(shape) for part, shape in zip(parts, SHAPES)]
    for w, b in zip(parts[0:4:2], parts[1:4:2]):
        seen = torch.tanh(torch.addmm(b, seen, w))
    return torch.tanh(torch.addmm(parts[5], seen, parts[4]))


class Runner:
    """Sixteen bodies at once, in a physics of springs."""

    def __init__(self, bodies=16):
        g = torch.Generator(device="cuda").manual_seed(1)
        self.push = torch.randn(ACTED, OBSERVED, device="cuda", generator=g) / ACTED
        self.start = torch.randn(bodies, OBSERVED, device="cuda", generator=g)

    def fitness(self, theta, moments=6):
        state, total = self.start, 0.0
        for _ in range(moments):
            action = act(theta, state)
            state = 0.98 * state + action @ self.push
            total = total + state[:, 0].mean() - 0.1 * action.square().mean()
        return total


def noise(seed):
    g = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(SIZE, device="cuda", generator=g)


def ranks(scores):
    """Fitness by rank, from -0.5 to 0.5."""
    order = scores.argsort().argsort().float()
    return order / (len(scores) - 1) - 0.5


@torch.no_grad()
def evolve(generations=2, pairs=160, sigma=0.02, rate=0.01):
    runner, theta = Runner(), torch.zeros(SIZE, device="cuda")
    for generation in range(generations):
        walks, scores = [], []
        for n in range(pairs):
            seed = generation * pairs + n
            eps = noise(seed)
            scores += [runner.fitness(theta + sigma * eps), runner.fitness(theta - sigma * eps)]
            walks.append(seed if MENDED else eps)
        good = ranks(torch.stack(scores)).view(pairs, 2)
        step = torch.zeros_like(theta)
        for walk, gain in zip(walks, good[:, 0] - good[:, 1]):
            step += gain * (noise(walk) if MENDED else walk)
        theta += rate / (pairs * sigma) * step
        print(generation, max(float(s) for s in scores[:8]))


evolve()
