"""CMA-ES tunes the weights of a small controller. The covariance of all of them is decomposed in every generation."""

import math
import os

import torch

CHOLESKY = bool(os.environ.get("MENDED"))


class CMA:
    """Evolution by a normal distribution whose shape is learned (rank-mu, without the path of the rank-one part)."""

    def __init__(self, dimension, population, sigma=0.3):
        self.n, self.population, self.sigma = dimension, population, sigma
        parents = population // 2
        weights = math.log(parents + 0.5) - torch.arange(1, parents + 1).log()
        self.weights = (weights / weights.sum()).cuda()
        self.mu = 1 / self.weights.square().sum().item()
        self.rate = min(0.3, 2 * self.mu / dimension)
        self.mean = torch.zeros(dimension, device="cuda")
        self.covariance = torch.eye(dimension, device="cuda")

    def sample(self):
        """Candidates, and the steps to them from the mean."""
        z = torch.randn(self.population, self.n, device="cuda")
        if CHOLESKY:
            steps = z @ torch.linalg.cholesky_ex(self.covariance).L.T
        else:
            spread, axes = torch.linalg.eigh(self.covariance)
            steps = (z * spread.clamp(min=1e-20).sqrt()) @ axes.T
        return self.mean + self.sigma * steps, steps

    def learn(self, steps, costs):
        best = steps[costs.argsort()[: len(self.weights)]]
        self.mean += self.sigma * (self.weights @ best)
        self.covariance.addmm_(
            (best * self.weights[:, None]).T, best, beta=1 - self.rate, alpha=self.rate
        )
        self.sigma *= 0.98


class Pendulums:
    """A chain of pendulums, held upright by a network with one hidden layer."""

    def __init__(self, joints=32, hidden=106):
        self.joints, self.hidden = joints, hidden
        self.dimension = 2 * joints * hidden + hidden + hidden * joints // 8

    def costs(self, candidates, moments=10):
        j, h = self.joints, self.hidden
        sizes = (2 * j * h, h, h * j // 8)
        w1, b1, w2 = candidates.split(sizes, 1)
        w1, w2 = w1.view(-1, 2 * j, h), w2.view(-1, h, j // 8)
        angle = torch.full((len(candidates), j), 0.1, device="cuda")
        speed = torch.zeros_like(angle)
        total = 0
        for _ in range(moments):
            seen = torch.cat([angle, speed], 1).unsqueeze(1)
            force = ((seen @ w1).squeeze(1) + b1).tanh().unsqueeze(1) @ w2
            speed = speed + 0.05 * (9.8 * angle.sin() + force.squeeze(1).repeat(1, 8))
            angle = angle + 0.05 * speed
            total = total + angle.square().sum(1)
        return total


@torch.no_grad()
def main():
    task = Pendulums()
    search = CMA(task.dimension, population=64)
    print(task.dimension, "weights")
    for generation in range(3):
        candidates, steps = search.sample()
        costs = task.costs(candidates)
        search.learn(steps, costs)
        print(generation, costs.min().item())


main()
