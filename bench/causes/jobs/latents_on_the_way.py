"""A sampler returns all states on the way from noise to picture, for a film of each batch."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class Eps(nn.Module):
    def __init__(self, w=32):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, w, 3, padding=1), nn.SiLU(), nn.Conv2d(w, w, 3, padding=1), nn.SiLU(),
            nn.Conv2d(w, 3, 3, padding=1),
        )  # fmt: skip

    def forward(self, x, t):
        return self.layers(x + t)


class Sampler:
    """Deterministic steps (DDIM) of a trained model."""

    def __init__(self, model, steps=25):
        self.model = model
        self.alphas = torch.linspace(0.02, 0.999, steps, device="cuda")

    def step(self, x, now, then):
        eps = self.model(x, now)
        clean = (x - (1 - now).sqrt() * eps) / now.sqrt()
        return then.sqrt() * clean + (1 - then).sqrt() * eps

    @torch.no_grad()
    def sample(self, count, side):
        x = torch.randn(count, 3, side, side, device="cuda")
        film = [x.cpu() if MENDED else x]
        for now, then in zip(self.alphas, self.alphas[1:]):
            x = self.step(x, now, then)
            film.append(x.cpu() if MENDED else x)
        return x, film


sampler = Sampler(Eps().cuda().eval())
films = []
for batch in range(8):
    pictures, film = sampler.sample(8, 192)
    films.append(film)
