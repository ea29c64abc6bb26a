"""Matching keypoints between two scans of a drawing: SuperGlue. Self- and cross-attention over keypoints, then 100
log-domain Sinkhorn iterations with a dustbin, negative log-likelihood of the true assignment. Accelerate."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

DIM, KEYPOINTS = 256, 640


class Pairs(Dataset):
    """Keypoints of one sheet, the same keypoints moved by a homography, some lost on each side."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        k = KEYPOINTS
        p0, desc = (
            torch.rand(k, 2, generator=g) * 2 - 1,
            F.normalize(torch.randn(k, DIM, generator=g), dim=1),
        )
        h = torch.eye(3) + 0.1 * torch.randn(3, 3, generator=g)
        q = torch.cat([p0, torch.ones(k, 1)], 1) @ h.T
        perm = torch.randperm(k, generator=g)
        p1, desc1 = (q[:, :2] / q[:, 2:].clamp(min=0.2))[perm], desc[perm]
        desc1 = F.normalize(desc1 + 0.05 * torch.randn(k, DIM, generator=g), dim=1)
        lost = torch.rand(k, generator=g) < 0.3
        desc1[lost] = F.normalize(torch.randn(int(lost.sum()), DIM, generator=g), dim=1)
        match = torch.empty(k, dtype=torch.long)
        match[perm] = torch.where(lost, k, torch.arange(k))  # k is the dustbin
        return {
            "kpts0": p0,
            "kpts1": p1,
            "desc0": desc,
            "desc1": desc1,
            "match": match,
            "lost": lost,
        }


def mlp(sizes):
    layers = []
    for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:])):
        layers.append(nn.Conv1d(a, b, 1))
        if i < len(sizes) - 2:
            layers += [nn.BatchNorm1d(b), nn.ReLU()]
    return nn.Sequential(*layers)


class Propagation(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.merge = (nn.Conv1d(dim, dim, 1) for _ in range(4))
        self.mlp = mlp([2 * dim, 2 * dim, dim])

    def forward(self, x, source):
        b, d, n = x.shape
        q, k, v = (
            f(t).view(b, d // self.heads, self.heads, -1)
            for f, t in ((self.q, x), (self.k, source), (self.v, source))
        )
        prob = (torch.einsum("bdhn,bdhm->bhnm", q, k) / (d // self.heads) ** 0.5).softmax(-1)
        message = torch.einsum("bhnm,bdhm->bdhn", prob, v).reshape(b, d, n)
        return self.mlp(torch.cat([x, self.merge(message)], 1))


def sinkhorn(scores, bin_score, iters):
    b, m, n = scores.shape
    row, col, corner = (
        bin_score.expand(b, m, 1),
        bin_score.expand(b, 1, n),
        bin_score.expand(b, 1, 1),
    )
    z = torch.cat([torch.cat([scores, row], 2), torch.cat([col, corner], 2)], 1)
    norm = -scores.new_tensor(float(m + n)).log()
    mu = torch.cat([norm.expand(m), norm.new_tensor([float(n)]).log() + norm])[None].expand(b, -1)
    nu = torch.cat([norm.expand(n), norm.new_tensor([float(m)]).log() + norm])[None].expand(b, -1)
    u, v = torch.zeros_like(mu), torch.zeros_like(nu)
    for _ in range(iters):
        u = mu - torch.logsumexp(z + v[:, None], 2)
        v = nu - torch.logsumexp(z + u[:, :, None], 1)
    return z + u[:, :, None] + v[:, None] - norm


class SuperGlue(nn.Module):
    def __init__(self, dim=DIM, layers=9, iters=100):
        super().__init__()
        self.encode = mlp([2, 32, 64, 128, dim])
        self.layers = nn.ModuleList(
            nn.ModuleList([Propagation(dim), Propagation(dim)]) for _ in range(layers)
        )
        self.final = nn.Conv1d(dim, dim, 1)
        self.bin = nn.Parameter(torch.tensor(1.0))
        self.iters = iters

    def forward(self, kpts0, kpts1, desc0, desc1):
        x, y = (d.mT + self.encode(k.mT) for d, k in ((desc0, kpts0), (desc1, kpts1)))
        for own, cross in self.layers:
            x, y = x + own(x, x), y + own(y, y)
            x, y = x + cross(x, y), y + cross(y, x)
        scores = torch.einsum("bdn,bdm->bnm", self.final(x), self.final(y)) / DIM**0.5
        return sinkhorn(scores.float(), self.bin, self.iters)


def main():
    set_seed(3)
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
    model = SuperGlue()
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.999996)
    loader = DataLoader(Pairs(10 * 6), batch_size=10, shuffle=True)
    model, opt, loader, sched = accelerator.prepare(model, opt, loader, sched)
    for batch in loader:
        match, lost = batch.pop("match"), batch.pop("lost")
        with accelerator.accumulate(model):
            z = model(**batch)
            rows = -z[:, :-1].gather(2, match[..., None]).squeeze(2).mean()
            columns = -(z[:, -1, :-1] * lost).sum() / lost.sum().clamp(min=1)
            accelerator.backward(rows + columns)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 10.0)
            opt.step()
            sched.step()
            opt.zero_grad()
        accelerator.print(f"rows {rows.item():.3f} dustbin {columns.item():.3f}")


if __name__ == "__main__":
    main()
