"""Electrons in a trap by variational Monte Carlo: a FermiNet-like wave function in torch.func, Laplacian by jvp of grad under vmap, Metropolis walkers."""

import math

import torch
from torch.func import functional_call, grad, jvp, vmap
from torch.nn import Linear, Module, ModuleList, Parameter

ELECTRONS, DETS = 6, 4


class Wave(Module):
    """log|psi| of one configuration of electrons, (ELECTRONS, 3)."""

    def __init__(self, one=96, two=16, depth=3):
        super().__init__()
        self.one, self.two = ModuleList(), ModuleList()
        f1, f2 = 4, 4
        for _ in range(depth):
            self.one.append(Linear(2 * f1 + f2, one))
            self.two.append(Linear(f2, two))
            f1, f2 = one, two
        self.orbitals = Linear(one, DETS * ELECTRONS)
        self.width = Parameter(torch.ones(DETS, ELECTRONS))

    def forward(self, r):
        pair = r[:, None] - r[None, :]
        dist = (pair.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        h1 = torch.cat([r, r.square().sum(-1, keepdim=True).add(1e-6).sqrt()], -1)
        h2 = torch.cat([pair, dist], -1)
        for a, b in zip(self.one, self.two):
            x = torch.tanh(
                a(torch.cat([h1, h1.mean(0, keepdim=True).expand_as(h1), h2.mean(1)], -1))
            )
            h1 = x if x.shape != h1.shape else x + h1
            y = torch.tanh(b(h2))
            h2 = y if y.shape != h2.shape else y + h2
        phi = self.orbitals(h1).unflatten(-1, (DETS, ELECTRONS)).transpose(0, 1)
        phi = phi * torch.exp(-self.width[:, None] * r.square().sum(-1)[None, :, None])
        sign, logdet = torch.linalg.slogdet(phi)
        top = logdet.max().detach()
        return (sign * torch.exp(logdet - top)).sum().abs().clamp_min(1e-12).log() + top


net = Wave().cuda()
params = {k: p.detach() for k, p in net.named_parameters()}
state = {k: (torch.zeros_like(p), torch.zeros_like(p)) for k, p in params.items()}


def log_psi(params, flat):
    return functional_call(net, params, (flat.view(ELECTRONS, 3),))


def local_energy(params, flat):
    g = grad(log_psi, argnums=1)
    eye = torch.eye(3 * ELECTRONS, device=flat.device)

    def along(v):
        first, second = jvp(lambda x: g(params, x), (flat,), (v,))
        return first @ v, second @ v

    slopes, curves = vmap(along)(eye)
    r = flat.view(ELECTRONS, 3)
    i, j = torch.triu_indices(ELECTRONS, ELECTRONS, 1, device=flat.device)
    repulsion = 1 / ((r[i] - r[j]).square().sum(-1) + 1e-6).sqrt()
    return -0.5 * (curves.sum() + slopes.square().sum()) + 0.5 * r.square().sum() + repulsion.sum()


def metropolis(params, walkers, moves=5, width=0.3):
    amplitude = vmap(log_psi, (None, 0))
    now = amplitude(params, walkers)
    for _ in range(moves):
        proposal = walkers + width * torch.randn_like(walkers)
        then = amplitude(params, proposal)
        accept = (2 * (then - now)).exp() > torch.rand_like(now)
        walkers = torch.where(accept[:, None], proposal, walkers)
        now = torch.where(accept, then, now)
    return walkers


def surrogate(params, walkers, energy):
    centred = (energy - energy.median()).clamp(-5, 5)
    return 2 * (centred * vmap(log_psi, (None, 0))(params, walkers)).mean()


walkers = torch.randn(8192, 3 * ELECTRONS, device="cuda")
for t in range(1, 5):
    walkers = metropolis(params, walkers)
    energy = vmap(local_energy, (None, 0), chunk_size=4096)(params, walkers)
    grads = grad(surrogate)(params, walkers, energy.detach())
    for k, g in grads.items():
        m, v = state[k]
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        step = 1e-3 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        params[k] = params[k] - step * m / (v.sqrt() + 1e-8)
    print(f"{t}: energy {energy.mean().item():.3f} +- {energy.std().item():.3f}")
