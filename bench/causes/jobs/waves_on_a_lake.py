"""Shallow water on a grid, with the height saved for the film."""

import os

import torch

MENDED = os.environ.get("MENDED")
N, STEPS, EVERY = 1024, 900, 3
device = torch.device("cuda")
g, dt, dx = 9.81, 0.01, 1.0


def shift(a, n, dim):
    return torch.roll(a, n, dim)


def slope(a, dim):
    return (shift(a, -1, dim) - shift(a, 1, dim)) / (2 * dx)


def simulate():
    h = torch.ones(N, N, device=device)
    h[480:540, 480:540] += 0.3
    u, v = torch.zeros_like(h), torch.zeros_like(h)
    film = []
    for step in range(STEPS):
        u = u - dt * g * slope(h, 0)
        v = v - dt * g * slope(h, 1)
        h = h - dt * (slope(h * u, 0) + slope(h * v, 1))
        if step % EVERY == 0:
            film.append(h.cpu() if MENDED else h)
    return film


with torch.no_grad():
    film = simulate()
for i, frame in enumerate(film[::50]):
    picture = (frame.clamp(0.5, 1.5) * 127).to(torch.uint8).cpu().numpy()
print(len(film), "frames")
