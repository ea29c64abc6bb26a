"""Energies and forces of alloys: a message-passing potential, forces as gradients of the energy (create_graph), EMA, ReduceLROnPlateau."""

import copy

import torch
from torch import nn


class Interaction(nn.Module):
    def __init__(self, dim, rbf):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(rbf, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.pre = nn.Linear(dim, dim, bias=False)
        self.post = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, h, i, j, basis):
        message = self.pre(h)[j] * self.filter(basis)
        return h + self.post(torch.zeros_like(h).index_add(0, i, message))


class Potential(nn.Module):
    def __init__(self, dim=128, rbf=32, layers=4, cutoff=5.0):
        super().__init__()
        self.embed = nn.Embedding(90, dim)
        self.layers = nn.ModuleList(Interaction(dim, rbf) for _ in range(layers))
        self.energy = nn.Sequential(nn.Linear(dim, dim // 2), nn.SiLU(), nn.Linear(dim // 2, 1))
        self.register_buffer("centers", torch.linspace(0, cutoff, rbf))

    def forward(self, z, pos, i, j, graph, n_graphs):
        pos.requires_grad_(True)
        d = (pos[i] - pos[j]).pow(2).sum(-1).add(1e-8).sqrt()
        basis = torch.exp(-10 * (d[:, None] - self.centers) ** 2)
        h = self.embed(z)
        for layer in self.layers:
            h = layer(h, i, j, basis)
        e = torch.zeros(n_graphs, device=pos.device).index_add(0, graph, self.energy(h).squeeze(-1))
        f = -torch.autograd.grad(e.sum(), pos, create_graph=self.training)[0]
        return e, f


def structures(n_graphs=64, atoms=48, neighbours=24):
    n = n_graphs * atoms
    i = torch.arange(n).repeat_interleave(neighbours)
    j = (i // atoms) * atoms + torch.randint(0, atoms, i.shape)
    return dict(
        z=torch.randint(1, 90, (n,)),
        pos=torch.rand(n, 3) * 8,
        i=i,
        j=j,
        graph=torch.arange(n) // atoms,
    ), (torch.randn(n_graphs), torch.randn(n, 3))


def main():
    model = Potential().cuda()
    ema = copy.deepcopy(model)
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, amsgrad=True)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=5)
    for step in range(6):
        inputs, (energy, force) = structures()
        e, f = model(**{k: v.cuda() for k, v in inputs.items()}, n_graphs=64)
        loss = 0.05 * (e - energy.cuda()).abs().mean() + (f - force.cuda()).norm(dim=-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step(loss.item())
        with torch.no_grad():
            for a, b in zip(ema.parameters(), model.parameters()):
                a.lerp_(b, 0.01)
        print(step, loss.item())


main()
