"""Scans of quarries labelled point by point with kernel point convolutions, clouds of different sizes stacked in each batch."""

import torch
import torch.nn.functional as F
from torch import nn

CLASSES, NEIGHBOURS, KERNEL = 9, 26, 15


def scan(seed):
    """A terraced slope with 7,000 to 10,000 points."""
    g = torch.Generator().manual_seed(seed)
    n = int(torch.randint(7000, 10000, (1,), generator=g))
    xy = 10 * torch.rand(n, 2, generator=g)
    z = (xy[:, :1] / 2).floor() + 0.05 * torch.randn(n, 1, generator=g)
    labels = (z.squeeze(1).round().clamp(0, 4) + (xy[:, 1] > 5) * 4).long()
    return torch.cat([xy, z], 1), labels


def grid(points, cell):
    """The mean of the points in each occupied cell."""
    _, index = torch.unique((points / cell).floor().long(), dim=0, return_inverse=True)
    n = int(index.max()) + 1
    total = torch.zeros(n, 3).index_add_(0, index, points)
    return total / torch.bincount(index, minlength=n).unsqueeze(1)


def neighbours(queries, points):
    k = min(NEIGHBOURS, len(points))
    parts = [torch.cdist(q, points).topk(k, largest=False).indices for q in queries.split(2048)]
    return torch.cat(parts)[:, torch.arange(NEIGHBOURS).clamp(max=k - 1)]


def pyramid(clouds, cell=0.12, levels=4):
    """For each level: all points, the neighbours of each, those of the next level's points, and the nearest above."""
    stacked = []
    for level in range(levels):
        coarse = [grid(c, cell * 2 ** (level + 1)) for c in clouds]
        own, pool, up, at, below = [], [], [], 0, 0
        for fine, rough in zip(clouds, coarse):
            fine, rough = fine.cuda(), rough.cuda()
            own.append(neighbours(fine, fine) + at)
            pool.append(neighbours(rough, fine) + at)
            up.append(torch.cdist(fine, rough).argmin(1) + below)
            at, below = at + len(fine), below + len(rough)
        stacked.append([torch.cat(clouds).cuda(), *(torch.cat(x) for x in (own, pool, up))])
        clouds = coarse
    return stacked


class KPConv(nn.Module):
    def __init__(self, cin, cout, radius):
        super().__init__()
        points = F.normalize(torch.randn(KERNEL, 3), dim=1) * 0.66 * radius
        points[0] = 0
        self.register_buffer("points", points)
        self.extent = 0.5 * radius
        self.weight = nn.Parameter(torch.randn(KERNEL, cin, cout) * (2 / (KERNEL * cin)) ** 0.5)

    def forward(self, queries, support, index, x):
        offset = support[index] - queries[:, None]
        distance = (offset[:, :, None] - self.points).norm(dim=-1)
        influence = (1 - distance / self.extent).clamp(min=0)
        gathered = torch.einsum("nkp,nkc->npc", influence, x[index])
        return torch.einsum("npc,pcd->nd", gathered, self.weight)


class Bottleneck(nn.Module):
    def __init__(self, cin, cout, radius, strided=False):
        super().__init__()
        mid = cout // 4
        self.strided = strided
        self.reduce = nn.Sequential(nn.Linear(cin, mid, bias=False), norm(mid), nn.LeakyReLU(0.1))
        self.conv, self.norm = KPConv(mid, mid, radius), norm(mid)
        self.expand = nn.Sequential(nn.Linear(mid, cout, bias=False), norm(cout))
        self.short = nn.Identity() if cin == cout else nn.Linear(cin, cout, bias=False)

    def forward(self, queries, support, index, x):
        y = F.leaky_relu(self.norm(self.conv(queries, support, index, self.reduce(x))), 0.1)
        kept = x[index].amax(1) if self.strided else x
        return F.leaky_relu(self.expand(y) + self.short(kept), 0.1)


def norm(width):
    return nn.BatchNorm1d(width, momentum=0.02)


class Network(nn.Module):
    def __init__(self, width=128, levels=4, cell=0.12):
        super().__init__()
        self.enter = KPConv(4, width, 2.5 * cell)
        self.stages, self.pools, self.ups = (nn.ModuleList() for _ in range(3))
        for level in range(levels):
            radius, w = 2.5 * cell * 2**level, width * 2**level
            self.stages.append(nn.ModuleList(Bottleneck(w, w, radius) for _ in range(2)))
            self.pools.append(Bottleneck(w, 2 * w, radius, strided=True))
            self.ups.append(nn.Sequential(nn.Linear(3 * w, w), norm(w), nn.LeakyReLU(0.1)))
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(width, CLASSES))

    def forward(self, levels):
        points, own, _, _ = levels[0]
        x = torch.cat([torch.ones_like(points[:, :1]), points], 1)
        x = F.leaky_relu(self.enter(points, points, own, x), 0.1)
        kept = []
        for i, (points, own, pool, _) in enumerate(levels):
            for block in self.stages[i]:
                x = block(points, points, own, x)
            kept.append(x)
            below = levels[i + 1][0] if i + 1 < len(levels) else self.last(points, pool)
            x = self.pools[i](below, points, pool, x)
        for i in reversed(range(len(levels))):
            x = self.ups[i](torch.cat([x[levels[i][3]], kept[i]], 1))
        return self.head(x)

    @staticmethod
    def last(points, pool):
        return points[pool].mean(1)


def main(steps=5, clouds=6):
    torch.manual_seed(8)
    model = Network().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.98, weight_decay=1e-3)
    for step in range(steps):
        points, labels = zip(*(scan(step * clouds + i) for i in range(clouds)))
        labels = torch.cat(labels).cuda()
        logits = model(pyramid(list(points)))
        share = torch.bincount(labels, minlength=CLASSES) / len(labels)
        loss = F.cross_entropy(logits, labels, weight=1 / (share + 0.02))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 100.0)
        optimizer.step()
        print(f"step {step}: {len(labels)} points, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
