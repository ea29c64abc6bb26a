# SCARF on laboratory tests: rows of a table against the same rows with 60 % of the values swapped for those of others.
# The batch is large, since the negatives are the other patients.

import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d, expand, p):
        super().__init__()
        self.norm = nn.BatchNorm1d(d)
        self.up, self.down = nn.Linear(d, expand * d), nn.Linear(expand * d, d)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return x + self.drop(self.down(self.drop(nn.functional.selu(self.up(self.norm(x))))))


class Scarf(nn.Module):
    def __init__(self, features, d=768, blocks=4, out=256):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(features, d), *[Block(d, 2, 0.1) for _ in range(blocks)]
        )
        self.head = nn.Sequential(nn.BatchNorm1d(d), nn.ReLU(), nn.Linear(d, out))
        self.mask_head = nn.Linear(d, features)
        self.log_tau = nn.Parameter(torch.tensor(0.0))

    def forward(self, x):
        z = self.encoder(x)
        return z, nn.functional.normalize(self.head(z), dim=-1)


class Marginals:
    """Swaps values for those of other rows of the whole table, column by column."""

    def __init__(self, table, rate=0.6):
        self.table, self.rate = table, rate

    def __call__(self, x):
        other = torch.randint(0, len(self.table), x.shape, device=x.device)
        swap = torch.rand(x.shape, device=x.device) < self.rate
        return torch.where(swap, self.table.gather(0, other), x), swap


def nt_xent(a, b, log_tau):
    sim = a @ b.t() / log_tau.exp()
    target = torch.arange(len(a), device=a.device)
    return (
        nn.functional.cross_entropy(sim, target) + nn.functional.cross_entropy(sim.t(), target)
    ) / 2


def patients(n, features):
    factors = torch.randn(n, 12, device="cuda")
    table = factors @ torch.randn(12, features, device="cuda") + 0.5 * torch.randn(
        n, features, device="cuda"
    )
    table[:, : features // 4] = (
        table[:, : features // 4].exp().clamp(max=50)
    )  # skewed ones, as enzymes are
    return (table - table.mean(0)) / table.std(0)


def main(batch=14336, rows=60_000, features=320, epochs=3, seed=8):
    torch.manual_seed(seed)
    table = patients(rows, features)
    corrupt = Marginals(table)
    net = Scarf(features).cuda()
    decay = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim <= 1]
    opt = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 1e-4}, {"params": rest, "weight_decay": 0}], lr=1e-3
    )
    per_epoch = rows // batch
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * per_epoch)
    scaler = torch.amp.GradScaler("cuda")

    for epoch in range(epochs):
        order = torch.randperm(rows, device="cuda")
        for i in range(per_epoch):
            x = table[order[i * batch : (i + 1) * batch]]
            y, swapped = corrupt(x)
            opt.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16):
                _, a = net(x)
                z, b = net(y)
                contrast = nt_xent(a, b, net.log_tau)
                which = nn.functional.binary_cross_entropy_with_logits(
                    net.mask_head(z), swapped.half()
                )
                loss = contrast + 0.5 * which
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            scaler.step(opt)
            scaler.update()
            sched.step()
            print(
                f"{epoch}.{i} contrast {contrast.item():.3f} mask {which.item():.3f} scale {scaler.get_scale():.0f}",
                file=sys.stderr,
            )


main()
