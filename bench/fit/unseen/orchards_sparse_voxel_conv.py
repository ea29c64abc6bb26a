"""Trees and fruits in laser scans of orchards by sparse 3-D convolution in plain PyTorch: neighbours by sorted keys, gather, multiply, index_add, a U of two levels, fp16 with a scaler."""

import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

SIDE = 512
OFFSETS = torch.tensor(list(itertools.product((-1, 0, 1), repeat=3)))


def keys(xyz):
    return (xyz[:, 0] * SIDE + xyz[:, 1]) * SIDE + xyz[:, 2]


def neighbours(xyz):
    """For each of 27 offsets: which voxels (in) feed which (out). xyz sorted by key."""
    table = keys(xyz)
    pairs = []
    for offset in OFFSETS.to(xyz.device):
        wanted = keys(xyz + offset)
        place = torch.searchsorted(table, wanted).clamp(max=len(table) - 1)
        out = (table[place] == wanted).nonzero().squeeze(1)
        pairs.append((place[out], out))
    return pairs


class Level:
    def __init__(self, xyz):
        self.xyz = xyz
        self.pairs = neighbours(xyz)

    def coarser(self):
        small, inverse = torch.unique(keys(self.xyz // 2), return_inverse=True)
        xyz = torch.stack([small // SIDE**2, small // SIDE % SIDE, small % SIDE], 1)
        return Level(xyz), inverse


class SubmanifoldConv(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(27, c_in, c_out) / (27 * c_in) ** 0.5)
        self.norm = nn.BatchNorm1d(c_out)

    def forward(self, x, level):
        out = x.new_zeros(len(x), self.weight.shape[2])
        for w, (source, goal) in zip(self.weight, level.pairs):
            out = out.index_add(0, goal, (x[source] @ w.to(x.dtype)).to(out.dtype))
        return F.relu(self.norm(out))


class OrchardNet(nn.Module):
    def __init__(self, classes=7, c=48):
        super().__init__()
        self.a1, self.a2 = SubmanifoldConv(4, c), SubmanifoldConv(c, c)
        self.b1, self.b2 = SubmanifoldConv(c, 2 * c), SubmanifoldConv(2 * c, 2 * c)
        self.c1, self.c2 = SubmanifoldConv(2 * c, 3 * c), SubmanifoldConv(3 * c, 3 * c)
        self.d = SubmanifoldConv(5 * c, 2 * c)
        self.e = SubmanifoldConv(3 * c, c)
        self.head = nn.Linear(c, classes)

    @staticmethod
    def pool(x, inverse, n):
        return x.new_zeros(n, x.shape[1]).index_reduce(0, inverse, x, "amax", include_self=False)

    def forward(self, x, fine):
        middle, up1 = fine.coarser()
        coarse, up2 = middle.coarser()
        x1 = self.a2(self.a1(x, fine), fine)
        x2 = self.pool(x1, up1, len(middle.xyz))
        x2 = self.b2(self.b1(x2, middle), middle)
        x3 = self.pool(x2, up2, len(coarse.xyz))
        x3 = self.c2(self.c1(x3, coarse), coarse)
        y = self.d(torch.cat([x3[up2], x2], 1), middle)
        y = self.e(torch.cat([y[up1], x1], 1), fine)
        return self.head(y)


def scan(points):
    ground = torch.randint(0, SIDE - 2, (points, 2))
    height = (60 * torch.rand(points) ** 3).long() + ground[:, 0] // 40
    xyz = torch.cat([ground, height[:, None]], 1) + 1
    xyz = torch.unique(keys(xyz))
    xyz = torch.stack([xyz // SIDE**2, xyz // SIDE % SIDE, xyz % SIDE], 1)
    return xyz, torch.rand(len(xyz), 4), torch.randint(0, 7, (len(xyz),))


net = OrchardNet().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda")
for step in range(4):
    xyz, feature, label = (t.cuda() for t in scan(160_000))
    with torch.autocast("cuda", dtype=torch.float16):
        loss = F.cross_entropy(net(feature, Level(xyz)), label)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(step, len(xyz), "voxels", loss.item())
