"""Ore in the ground is drawn at random, from a Gaussian process on scattered drill holes. The root of the covariance is taken by all its eigenvectors."""

import os
from dataclasses import dataclass

import torch

CHOLESKY = bool(os.environ.get("MENDED"))


@dataclass
class Matern:
    """Covariance of rough fields."""

    length: float = 0.1
    nugget: float = 1e-3

    def __call__(self, places):
        r = torch.cdist(places, places).mul_(3**0.5 / self.length)
        k = r.neg().exp_()
        k.mul_(r.add_(1))
        k.diagonal().add_(self.nugget)
        return k


class Process:
    def __init__(self, kernel, places):
        self.places = places
        covariance = kernel(places)
        self.factor = self.root(covariance)

    def root(self, covariance):
        if CHOLESKY:
            return torch.linalg.cholesky(covariance)
        values, vectors = torch.linalg.eigh(covariance)
        return vectors.mul_(values.clamp_(min=0).sqrt_())

    def draw(self, count):
        noise = torch.randn(len(self.places), count, device=self.places.device)
        return self.factor @ noise


def tonnes(fields, cut=1.5):
    """How much is worth digging for, in each of the fields."""
    return torch.relu(fields - cut).mean(0)


with torch.inference_mode():
    for seam in range(2):
        holes = torch.rand(9500, 3, device="cuda")
        process = Process(Matern(length=0.1 + 0.1 * seam), holes)
        yields = torch.cat([tonnes(process.draw(64)) for _ in range(4)])
        print(seam, yields.mean().item(), yields.std().item())
        del process
