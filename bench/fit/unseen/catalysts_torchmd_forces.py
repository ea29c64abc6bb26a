"""Energies and forces of atoms on catalysts: an equivariant transformer (scalars and vectors), forces by a second backward pass."""

import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(os.environ.get("JOB_STEPS", "5"))
ATOMS, NEIGHBOURS, MOLECULES = 48, 20, 48
CUTOFF, RADIAL, DIM, HEADS, LAYERS = 5.0, 48, 160, 8, 4


class Slabs(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        grid = torch.stack(torch.meshgrid(*[torch.arange(k) for k in (4, 4, 3)], indexing="ij"), -1)
        position = grid.reshape(-1, 3) * 1.8 + 0.2 * torch.randn(ATOMS, 3, generator=g)
        species = torch.randint(1, 20, (ATOMS,), generator=g)
        apart = torch.cdist(position, position).fill_diagonal_(1e9)
        neighbours = apart.topk(NEIGHBOURS, largest=False).indices
        # made-up targets: a pair potential
        close = apart.gather(1, neighbours)
        energy = (4 * ((1.5 / close) ** 12 - (1.5 / close) ** 6)).clamp(-5, 5).sum() / 2
        return position, species, neighbours, energy, torch.randn(ATOMS, 3, generator=g)


def join(items):
    position, species, neighbours, energy, force = (torch.stack(x) for x in zip(*items))
    shift = torch.arange(len(items))[:, None, None] * ATOMS
    return (
        position.flatten(0, 1),
        species.flatten(),
        (neighbours + shift).flatten(0, 1),
        energy,
        force.flatten(0, 1),
    )


class Radial(nn.Module):
    def __init__(self):
        super().__init__()
        start = torch.exp(torch.tensor(-CUTOFF))
        self.means = nn.Parameter(torch.linspace(float(start), 1, RADIAL))
        self.betas = nn.Parameter(torch.full((RADIAL,), (2 / RADIAL * (1 - float(start))) ** -2))

    def forward(self, d):
        window = 0.5 * (torch.cos(torch.pi * d / CUTOFF) + 1) * (d < CUTOFF)
        return window[..., None] * torch.exp(
            -self.betas * (torch.exp(-d)[..., None] - self.means) ** 2
        ), window


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.q, self.k, self.v = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, 3 * DIM)
        self.dk, self.dv = nn.Linear(RADIAL, DIM), nn.Linear(RADIAL, 3 * DIM)
        self.vectors = nn.Linear(DIM, 3 * DIM, bias=False)
        self.out = nn.Linear(DIM, 3 * DIM)

    def forward(self, x, vec, neighbours, radial, window, unit):
        n = len(x)
        h = self.norm(x)
        q = self.q(h).view(n, 1, HEADS, -1)
        k = self.k(h)[neighbours].view(n, NEIGHBOURS, HEADS, -1)
        dk = F.silu(self.dk(radial)).view_as(k)
        weight = F.silu((q * k * dk).sum(-1)) * window[..., None]
        v = (self.v(h)[neighbours] * F.silu(self.dv(radial))).view(n, NEIGHBOURS, HEADS, -1)
        scalar, s1, s2 = v.chunk(3, -1)
        scalar = (scalar * weight[..., None]).sum(1).reshape(n, DIM)
        s1, s2 = s1.reshape(n, NEIGHBOURS, 1, DIM), s2.reshape(n, NEIGHBOURS, 1, DIM)
        moved = (vec[neighbours] * s1 + s2 * unit[..., None]).sum(1)
        v1, v2, v3 = self.vectors(vec).chunk(3, -1)
        dot = (v1 * v2).sum(1)
        o1, o2, o3 = self.out(scalar).chunk(3, -1)
        return x + dot * o2 + o3, vec + v3 * o1[:, None] + moved


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.species, self.near = nn.Embedding(20, DIM), nn.Embedding(20, DIM)
        self.radial, self.mix = Radial(), nn.Linear(RADIAL, DIM)
        self.join = nn.Linear(2 * DIM, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Sequential(
            nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.SiLU(), nn.Linear(DIM, 1)
        )

    def forward(self, position, species, neighbours):
        difference = position[neighbours] - position[:, None]
        distance = (difference.square().sum(-1) + 1e-9).sqrt()
        unit = difference / distance[..., None]
        radial, window = self.radial(distance)
        around = (self.mix(radial) * self.near(species)[neighbours]).sum(1)
        x = self.join(torch.cat([self.species(species), around], 1))
        vec = x.new_zeros(len(x), 3, DIM)
        for layer in self.layers:
            x, vec = layer(x, vec, neighbours, radial, window, unit)
        return self.head(x).view(-1, ATOMS).sum(1)


def main():
    torch.manual_seed(0)
    model = Potential().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, amsgrad=True)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.8, patience=10)
    loader = DataLoader(Slabs(MOLECULES * STEPS), MOLECULES, collate_fn=join, pin_memory=True)
    for step, batch in enumerate(loader, 1):
        position, species, neighbours, energy, force = (t.cuda(non_blocking=True) for t in batch)
        position.requires_grad_()
        guess = model(position, species, neighbours)
        push = -torch.autograd.grad(guess.sum(), position, create_graph=True)[0]
        loss_e, loss_f = F.mse_loss(guess / ATOMS, energy / ATOMS), F.mse_loss(push, force)
        optimizer.zero_grad()
        (0.05 * loss_e + 0.95 * loss_f).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        plateau.step(loss_f.item())
        print(f"{step} energy {loss_e.item():.4f} forces {loss_f.item():.4f}")
    with tempfile.NamedTemporaryFile(suffix=".ckpt") as f:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f.name)


if __name__ == "__main__":
    main()
