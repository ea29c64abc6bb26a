"""PaiNN for peptides: scalar and vector features, energies and forces, so a gradient of a gradient."""

import math

import torch
import torch.nn as nn


class Message(nn.Module):
    def __init__(self, dim, n_rbf):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 3 * dim))
        self.filter = nn.Linear(n_rbf, 3 * dim)

    def forward(self, s, v, rbf, cut, unit, i, j):
        w = self.filter(rbf) * cut[:, None]
        ds, dv1, dv2 = (self.phi(s)[j] * w).chunk(3, -1)
        dv = v[j] * dv1[:, None] + unit[:, :, None] * dv2[:, None]
        return s.index_add(0, i, ds), v.index_add(0, i, dv)


class Update(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.U, self.V = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, 3 * dim))

    def forward(self, s, v):
        uv, vv = self.U(v), self.V(v)
        norm = torch.sqrt((vv**2).sum(1) + 1e-8)
        a, b, c = self.mlp(torch.cat([s, norm], -1)).chunk(3, -1)
        return s + a + b * (uv * vv).sum(1), v + c[:, None] * uv


class PaiNN(nn.Module):
    def __init__(self, dim=128, layers=4, n_rbf=20, cutoff=5.0):
        super().__init__()
        self.dim, self.n_rbf, self.cutoff = dim, n_rbf, cutoff
        self.embed = nn.Embedding(100, dim)
        self.messages = nn.ModuleList(Message(dim, n_rbf) for _ in range(layers))
        self.updates = nn.ModuleList(Update(dim) for _ in range(layers))
        self.out = nn.Sequential(nn.Linear(dim, dim // 2), nn.SiLU(), nn.Linear(dim // 2, 1))

    def forward(self, z, pos, i, j, mol, n_mol):
        r = pos[j] - pos[i]
        d = torch.sqrt((r**2).sum(-1) + 1e-12)
        k = torch.arange(1, self.n_rbf + 1, device=pos.device)
        rbf = torch.sin(k * math.pi * d[:, None] / self.cutoff) / d[:, None]
        cut = 0.5 * (torch.cos(math.pi * d / self.cutoff) + 1) * (d < self.cutoff)
        s = self.embed(z)
        v = s.new_zeros(len(z), 3, self.dim)
        for message, update in zip(self.messages, self.updates):
            s, v = message(s, v, rbf, cut, r / d[:, None], i, j)
            s, v = update(s, v)
        return s.new_zeros(n_mol).index_add(0, mol, self.out(s).squeeze(-1))


def batch(n_mol=24, atoms=40):
    pos = torch.rand(n_mol, atoms, 3) * 7
    a, b = torch.triu_indices(atoms, atoms, 1)
    pairs = torch.cat([torch.stack([a, b]), torch.stack([b, a])], 1)
    i, j = torch.cat([pairs + m * atoms for m in range(n_mol)], 1)
    z = torch.randint(1, 17, (n_mol * atoms,))
    mol = torch.arange(n_mol).repeat_interleave(atoms)
    return [t.cuda() for t in (z, pos.flatten(0, 1), i, j, mol)] + [
        torch.randn(n_mol).cuda(),
        torch.randn(n_mol * atoms, 3).cuda(),
    ]


def main():
    torch.manual_seed(3)
    model = PaiNN().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    for step in range(8):
        z, pos, i, j, mol, energy, force = batch()
        pos.requires_grad_(True)
        pred = model(z, pos, i, j, mol, len(energy))
        (grad,) = torch.autograd.grad(pred.sum(), pos, create_graph=True)
        loss = 0.05 * (pred - energy).pow(2).mean() + 0.95 * (-grad - force).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        print("step", step, "loss", loss.item())


if __name__ == "__main__":
    main()
