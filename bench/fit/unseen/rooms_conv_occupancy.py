"""Rooms from points by convolutional occupancy networks: a PointNet with pooling over cells, three planes with a U-Net each, occupancies asked at points."""

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = torch.device("cuda")
RES = 64


def cell_index(p, axes):
    xy = (p[..., axes] + 0.5).clamp(0, 0.999)
    ij = (xy * RES).long()
    return ij[..., 0] + RES * ij[..., 1]


def pool_to_plane(features, index, how):
    b, n, c = features.shape
    plane = features.new_zeros(b, RES * RES, c)
    return plane.scatter_reduce(
        1, index[..., None].expand(-1, -1, c), features, reduce=how, include_self=False
    )


class ResFC(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.a, self.b = nn.Linear(i, min(i, o)), nn.Linear(min(i, o), o)
        self.s = nn.Linear(i, o, bias=False) if i != o else nn.Identity()

    def forward(self, x):
        return self.s(x) + self.b(F.relu(self.a(F.relu(x))))


class UNet(nn.Module):
    def __init__(self, c, depth=3):
        super().__init__()
        ch = [c * 2**d for d in range(depth + 1)]

        def double(i, o):
            return nn.Sequential(
                nn.Conv2d(i, o, 3, padding=1), nn.ReLU(), nn.Conv2d(o, o, 3, padding=1), nn.ReLU()
            )

        self.down = nn.ModuleList([double(c, c)] + [double(a, b) for a, b in zip(ch, ch[1:])])
        self.up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(ch, ch[1:])][::-1])
        self.merge = nn.ModuleList([double(2 * a, a) for a in ch[:-1]][::-1])

    def forward(self, x):
        kept = []
        for n, d in enumerate(self.down):
            x = d(x if n == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        kept.pop()
        for u, m in zip(self.up, self.merge):
            x = m(torch.cat([u(x), kept.pop()], 1))
        return x


class Occupancy(nn.Module):
    planes = {"xy": [0, 1], "xz": [0, 2], "yz": [1, 2]}

    def __init__(self, c=48):
        super().__init__()
        self.inp = nn.Linear(3, 2 * c)
        self.blocks = nn.ModuleList([ResFC(2 * c, c) for _ in range(4)])
        self.unets = nn.ModuleDict({k: UNet(c) for k in self.planes})
        self.ask = nn.Linear(3, 96)
        self.cond = nn.ModuleList([nn.Linear(c, 96) for _ in range(4)])
        self.dec = nn.ModuleList([ResFC(96, 96) for _ in range(4)])
        self.out = nn.Linear(96, 1)

    def encode(self, cloud):
        where = {k: cell_index(cloud, ax) for k, ax in self.planes.items()}
        x = self.blocks[0](self.inp(cloud))
        for block in self.blocks[1:]:
            pooled = 0
            for index in where.values():
                plane = pool_to_plane(x, index, "amax")
                pooled = pooled + plane.gather(1, index[..., None].expand_as(x))
            x = block(torch.cat([x, pooled], -1))
        out = {}
        for k, index in where.items():
            plane = pool_to_plane(x, index, "mean").transpose(1, 2).unflatten(2, (RES, RES))
            out[k] = self.unets[k](plane)
        return out

    def decode(self, planes, q):
        c = 0
        for k, plane in planes.items():
            grid = 2 * q[:, :, None, self.planes[k]]
            sampled = F.grid_sample(plane, grid, padding_mode="border", align_corners=True)
            c = c + sampled.squeeze(-1).transpose(1, 2)
        x = self.ask(q)
        for f, block in zip(self.cond, self.dec):
            x = block(x + f(c))
        return self.out(F.relu(x)).squeeze(-1)


net = Occupancy().to(DEVICE)
optim = torch.optim.Adam(net.parameters(), lr=1e-4)
for it in range(5):
    cloud = torch.rand(28, 10_000, 3, device=DEVICE) - 0.5
    asked = torch.rand(28, 8_192, 3, device=DEVICE) - 0.5
    inside = (asked.norm(dim=-1) < 0.3).float()
    logits = net.decode(net.encode(cloud), asked)
    loss = F.binary_cross_entropy_with_logits(logits, inside, reduction="none").sum(-1).mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    print("it", it, "loss", loss.item())
