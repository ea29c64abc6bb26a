"""Learns a hidden pairwise force by differentiating through a leapfrog integrator of many bodies.

The potential is a small network of distance, kept in a plain dictionary; masses are learned as well.
First Adam on everything, then a few L-BFGS steps on the masses alone.
"""

import argparse
import math
import os
import tempfile

import torch
from torch.func import vmap

parser = argparse.ArgumentParser()
parser.add_argument("--bodies", type=int, default=1024)
parser.add_argument("--features", type=int, default=32)
parser.add_argument("--horizon", type=int, default=8)
parser.add_argument("--dt", type=float, default=0.02)
parser.add_argument("--iterations", type=int, default=10)
parser.add_argument("--refine", type=int, default=2)
opt = parser.parse_args()

dev = torch.device("cuda")
gen = torch.Generator(device="cpu").manual_seed(12)


def rand(*shape):
    return torch.randn(*shape, generator=gen).to(dev)


params = {
    "centres": torch.linspace(0, 6, opt.features, device=dev),
    "w1": rand(opt.features, opt.features) / math.sqrt(opt.features),
    "b1": torch.zeros(opt.features, device=dev),
    "w2": rand(opt.features) / math.sqrt(opt.features),
}
log_mass = torch.zeros(opt.bodies, device=dev)
for t in [*params.values(), log_mass]:
    t.requires_grad_(True)


def true_force(r2):
    return (r2 + 0.05) ** -1.5


def learned_force(r2, p):
    d = torch.sqrt(r2 + 1e-3)
    basis = torch.exp(-((d[..., None] - p["centres"]) ** 2) * 2)
    hidden = torch.tanh(basis @ p["w1"] + p["b1"])
    return hidden @ p["w2"]


def acceleration(x, mass, force):
    delta = x[None, :, :] - x[:, None, :]
    strength = force(delta.square().sum(-1)) * mass[None, :]
    strength = strength - torch.diag(torch.diagonal(strength))
    return (strength[..., None] * delta).sum(1) / len(x)


def leapfrog(x, v, mass, force, steps):
    path = []
    a = acceleration(x, mass, force)
    for _ in range(steps):
        v = v + 0.5 * opt.dt * a
        x = x + opt.dt * v
        a = acceleration(x, mass, force)
        v = v + 0.5 * opt.dt * a
        path.append(x)
    return torch.stack(path), v


def energy(v, mass):
    return vmap(lambda vi, mi: 0.5 * mi * vi.dot(vi))(v, mass).sum()


def scene():
    x = rand(opt.bodies, 3) * 2
    v = torch.cross(x, torch.tensor([[0.0, 0.0, 0.4]], device=dev).expand_as(x), dim=1)
    with torch.no_grad():
        mass = torch.exp(0.3 * torch.sin(torch.arange(opt.bodies, device=dev)))
        path, last = leapfrog(x, v, mass, true_force, opt.horizon)
    return x, v, path, energy(last, mass)


def objective(x, v, path, e):
    mass = log_mass.exp()
    guess, last = leapfrog(x, v, mass, lambda r2: learned_force(r2, params), opt.horizon)
    miss = ((guess - path) ** 2).sum(-1).mean()
    drift = (energy(last, mass) / e - 1) ** 2
    return miss + 0.01 * drift, miss


adam = torch.optim.Adam(
    [{"params": list(params.values()), "lr": 3e-3}, {"params": [log_mass], "lr": 1e-2}],
    amsgrad=True,
)
for i in range(opt.iterations):
    adam.zero_grad()
    loss, miss = objective(*scene())
    loss.backward()
    adam.step()
    print(f"adam {i}: loss {loss.item():.5f} miss {miss.item():.5f}", flush=True)
    if i == opt.iterations // 2:
        torch.save(
            {"params": params, "mass": log_mass}, os.path.join(tempfile.mkdtemp(), "half.pt")
        )

lbfgs = torch.optim.LBFGS(
    [log_mass], lr=0.5, max_iter=4, history_size=5, line_search_fn="strong_wolfe"
)
fixed = scene()


def closure():
    lbfgs.zero_grad()
    loss, _ = objective(*fixed)
    loss.backward(inputs=[log_mass])
    return loss


for i in range(opt.refine):
    print(f"lbfgs {i}: {lbfgs.step(closure).item():.5f}", flush=True)
