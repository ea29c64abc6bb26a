"""A neural force field: forces are the gradient of the energy, and the loss needs their gradient."""

import torch
from torch import Tensor, nn


def ssp(x: Tensor) -> Tensor:
    return nn.functional.softplus(x) - 0.6931471805599453


class GaussianBasis(nn.Module):
    def __init__(self, n: int = 50, cutoff: float = 5.0):
        super().__init__()
        self.register_buffer("mu", torch.linspace(0, cutoff, n))
        self.gamma = 0.5 / (cutoff / n) ** 2

    def forward(self, d: Tensor) -> Tensor:
        return torch.exp(-self.gamma * (d[:, None] - self.mu) ** 2)


class Interaction(nn.Module):
    def __init__(self, dim: int, n_basis: int):
        super().__init__()
        self.filter = nn.ModuleList([nn.Linear(n_basis, dim), nn.Linear(dim, dim)])
        self.inp = nn.Linear(dim, dim, bias=False)
        self.out1 = nn.Linear(dim, dim)
        self.out2 = nn.Linear(dim, dim)

    def forward(self, x: Tensor, basis: Tensor, cut: Tensor, i: Tensor, j: Tensor) -> Tensor:
        w = self.filter[1](ssp(self.filter[0](basis))) * cut[:, None]
        m = self.inp(x)[j] * w
        agg = torch.zeros_like(x).index_add(0, i, m)
        return x + self.out2(ssp(self.out1(agg)))


class SchNetLike(nn.Module):
    def __init__(self, dim: int = 128, depth: int = 4, cutoff: float = 5.0):
        super().__init__()
        self.cutoff = cutoff
        self.embed = nn.Embedding(100, dim)
        self.basis = GaussianBasis(50, cutoff)
        self.blocks = nn.ModuleList([Interaction(dim, 50) for _ in range(depth)])
        self.energy = nn.Sequential(nn.Linear(dim, dim // 2), nn.SiLU(), nn.Linear(dim // 2, 1))

    def forward(self, z: Tensor, pos: Tensor, i: Tensor, j: Tensor, mol: Tensor, n_mol: int):
        pos.requires_grad_(True)
        d = (pos[i] - pos[j]).pow(2).sum(-1).add(1e-8).sqrt()
        cut = 0.5 * (torch.cos(d * torch.pi / self.cutoff) + 1)
        basis = self.basis(d)
        x = self.embed(z)
        for block in self.blocks:
            x = block(x, basis, cut, i, j)
        e_atom = self.energy(x).squeeze(-1)
        energy = e_atom.new_zeros(n_mol).index_add(0, mol, e_atom)
        (grad,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
        return energy, -grad


def batches(n_mol: int, atoms: int, n: int):
    for seed in range(n):
        g = torch.Generator(device="cuda").manual_seed(seed)
        z = torch.randint(1, 10, (n_mol * atoms,), generator=g, device="cuda")
        pos = torch.rand(n_mol * atoms, 3, generator=g, device="cuda") * 6
        a = torch.arange(atoms, device="cuda")
        ii, jj = torch.meshgrid(a, a, indexing="ij")
        off = ~torch.eye(atoms, dtype=torch.bool, device="cuda")
        shift = torch.arange(n_mol, device="cuda")[:, None] * atoms
        i = (ii[off] + shift).flatten()
        j = (jj[off] + shift).flatten()
        mol = torch.arange(n_mol, device="cuda").repeat_interleave(atoms)
        yield z, pos, i, j, mol, torch.randn(n_mol, device="cuda"), torch.randn_like(pos)


model = SchNetLike().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, amsgrad=True)
for z, pos, i, j, mol, e_ref, f_ref in batches(n_mol=80, atoms=21, n=5):
    e, f = model(z, pos, i, j, mol, len(e_ref))
    loss = 0.01 * nn.functional.mse_loss(e, e_ref) + 0.99 * nn.functional.mse_loss(f, f_ref)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 10.0)
    optimizer.step()
    print(loss.item())
