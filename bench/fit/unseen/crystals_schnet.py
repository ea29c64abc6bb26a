"""SchNet for crystals: energies, and forces as their gradient (double backward), EMA of the weights."""

import copy

import torch
from torch import nn


def ssp(x):
    return nn.functional.softplus(x) - 0.6931471805599453


class CFConv(nn.Module):
    def __init__(self, width, filters, gaussians):
        super().__init__()
        self.filter1 = nn.Linear(gaussians, filters)
        self.filter2 = nn.Linear(filters, filters)
        self.lin1 = nn.Linear(width, filters, bias=False)
        self.lin2 = nn.Linear(filters, width)
        self.lin3 = nn.Linear(width, width)

    def forward(self, h, i, j, rbf, cutoff):
        w = self.filter2(ssp(self.filter1(rbf))) * cutoff[:, None]
        messages = self.lin1(h)[j] * w
        agg = torch.zeros(len(h), messages.shape[1], device=h.device).index_add(0, i, messages)
        return self.lin3(ssp(self.lin2(agg)))


class SchNet(nn.Module):
    def __init__(self, width=256, filters=256, gaussians=64, blocks=5, r_max=6.0):
        super().__init__()
        self.r_max = r_max
        self.embedding = nn.Embedding(100, width)
        self.blocks = nn.ModuleList([CFConv(width, filters, gaussians) for _ in range(blocks)])
        self.head = nn.Sequential(
            nn.Linear(width, width // 2), nn.Softplus(), nn.Linear(width // 2, 1)
        )
        self.register_buffer("centers", torch.linspace(0, r_max, gaussians))

    def forward(self, z, pos, i, j, crystal, n):
        d = (pos[i] - pos[j]).norm(dim=-1) + 1e-6
        rbf = torch.exp(-10.0 * (d[:, None] - self.centers) ** 2)
        cutoff = 0.5 * (torch.cos(d * torch.pi / self.r_max) + 1.0)
        h = self.embedding(z)
        for block in self.blocks:
            h = h + block(h, i, j, rbf, cutoff)
        e = self.head(h).squeeze(-1)
        return torch.zeros(n, device=e.device).index_add(0, crystal, e)


def crystals(n, atoms, neighbours):
    """`n` crystals of the same number of atoms, each with so many neighbours."""
    total = n * atoms
    i = torch.arange(total).repeat_interleave(neighbours)
    j = (i // atoms) * atoms + (i + torch.randint(1, atoms, i.shape)) % atoms
    batch = dict(
        z=torch.randint(1, 100, (total,)),
        pos=torch.rand(total, 3) * 6,
        i=i,
        j=j,
        crystal=torch.arange(n).repeat_interleave(atoms),
    )
    return (
        {k: v.cuda() for k, v in batch.items()},
        torch.randn(n).cuda(),
        torch.randn(total, 3).cuda(),
    )


def update(ema, model, decay=0.999):
    with torch.no_grad():
        for a, b in zip(ema.parameters(), model.parameters()):
            a.lerp_(b, 1 - decay)


def main(steps=8, n=16, atoms=64, neighbours=48):
    model = SchNet().cuda()
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
    for step in range(steps):
        batch, energy, forces = crystals(n, atoms, neighbours)
        batch["pos"].requires_grad_(True)
        e = model(**batch, n=n)
        f = -torch.autograd.grad(e.sum(), batch["pos"], create_graph=True)[0]
        loss = 0.01 * nn.functional.mse_loss(e, energy) + nn.functional.mse_loss(f, forces)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        update(ema, model)
        print(f"{step} {loss.item():.5f}")


if __name__ == "__main__":
    main()
