"""Molten salts with a small DimeNet: messages on directed edges, angles of triplets in a bilinear layer, energies, and forces that are trained (second derivatives)."""

import math

import torch
from torch import nn
from torch.nn.functional import silu


class Bessel(nn.Module):
    def __init__(self, count, cutoff):
        super().__init__()
        self.cutoff = cutoff
        self.freq = nn.Parameter(math.pi * torch.arange(1, count + 1).float())

    def forward(self, d):
        x = d[:, None] / self.cutoff
        envelope = 1 - 28 * x**6 + 48 * x**7 - 21 * x**8
        return envelope / x * torch.sin(self.freq * x)


class Interaction(nn.Module):
    def __init__(self, dim, radial, angular, bilinear):
        super().__init__()
        self.rbf = nn.Linear(radial, dim, bias=False)
        self.sbf = nn.Linear(angular, bilinear, bias=False)
        self.kj = nn.Linear(dim, dim)
        self.ji = nn.Linear(dim, dim)
        self.W = nn.Parameter(torch.randn(dim, bilinear, dim) * 2 / dim)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())

    def forward(self, m, rbf, sbf, kj, ji):
        x_ji = silu(self.ji(m))
        x_kj = (silu(self.kj(m)) * self.rbf(rbf))[kj]
        x = torch.einsum("wj,wl,ijl->wi", self.sbf(sbf), x_kj, self.W)
        x = x_ji + torch.zeros_like(x_ji).index_add(0, ji, x)
        return m + self.out(x)


class DimeNet(nn.Module):
    def __init__(self, species=4, dim=96, blocks=3, radial=6, angular=42, cutoff=5.0):
        super().__init__()
        self.embed = nn.Embedding(species, dim)
        self.radial = Bessel(radial, cutoff)
        self.first = nn.Linear(2 * dim + radial, dim)
        self.blocks = nn.ModuleList(Interaction(dim, radial, angular, 8) for _ in range(blocks))
        self.gate = nn.ModuleList(nn.Linear(radial, dim, bias=False) for _ in range(blocks + 1))
        self.read = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))
            for _ in range(blocks + 1)
        )
        self.orders = torch.arange(7.0)

    def angular(self, d, cos):
        """Six radial times seven angular functions for each triplet."""
        angle = torch.acos(cos.clamp(-0.9999, 0.9999))
        legs = torch.cos(angle[:, None] * self.orders.to(angle.device))
        return (self.radial(d)[:, :, None] * legs[:, None]).flatten(1)

    def forward(self, z, pos, i, j, kj, ji):
        vec = pos[j] - pos[i]
        d = vec.square().sum(1).add(1e-3).sqrt()
        cos = (vec[ji] * -vec[kj]).sum(1) / (d[ji] * d[kj])
        rbf, sbf = self.radial(d), self.angular(d[kj], cos)
        m = silu(self.first(torch.cat([self.embed(z[i]), self.embed(z[j]), rbf], 1)))
        energy = 0
        for n in range(len(self.read)):
            if n:
                m = self.blocks[n - 1](m, rbf, sbf, kj, ji)
            atoms = torch.zeros(len(z), m.shape[1], device=m.device)
            atoms = atoms.index_add(0, i, self.gate[n](rbf) * m)
            energy = energy + self.read[n](atoms)
        return energy.sum()


def melt(atoms=768, near=12):
    """Ions in a box, each with its twelve nearest (here: drawn), and the triplets of those edges."""
    i = torch.arange(atoms).repeat_interleave(near)
    j = (i + torch.randint(1, atoms, i.shape)) % atoms
    into = torch.argsort(i).view(atoms, near)  # the edges that end in each atom
    kj = into[j].flatten()
    ji = torch.arange(len(i)).repeat_interleave(near)
    z = torch.randint(0, 4, (atoms,))
    pos = torch.rand(atoms, 3) * 20
    return [t.cuda() for t in (z, pos, i, j, kj, ji)]


def main():
    torch.manual_seed(8)
    model = DimeNet().cuda()
    optim = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
    for epoch in range(4):
        z, pos, *edges = melt()
        energy_true, force_true = torch.randn((), device="cuda"), torch.randn_like(pos)
        pos.requires_grad_(True)
        energy = model(z, pos, *edges)
        (grad,) = torch.autograd.grad(energy, pos, create_graph=True)
        loss = 0.01 * (energy - energy_true).abs() + 0.99 * (-grad - force_true).norm(dim=1).mean()
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        print(epoch, loss.item())


main()
