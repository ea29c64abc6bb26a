"""Labels the vertices of jaw meshes with a message-passing network, one mesh a step."""

import os

import torch
from torch import nn
import torch.nn.functional as F

MENDED = os.environ.get("MENDED")
LIMIT = 8000
# vertices of the meshes in the folder, in the order of their names
VERTICES = [5210, 4877, 6120, 5544, 7010, 4390, 5902, 6333, 112_480, 5127, 4981, 6240]


class EdgeConv(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Sequential(
            nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.update = nn.Linear(2 * width, width)

    def forward(self, x, src, dst):
        m = self.message(torch.cat([x[dst], x[src] - x[dst]], -1))
        pooled = torch.zeros_like(x).index_add(0, dst, m)
        return x + F.silu(self.update(torch.cat([x, pooled], -1)))


class JawNet(nn.Module):
    def __init__(self, width=96, depth=4, teeth=17):
        super().__init__()
        self.stem = nn.Linear(6, width)
        self.layers = nn.ModuleList([EdgeConv(width) for _ in range(depth)])
        self.head = nn.Linear(width, teeth)

    def forward(self, x, src, dst):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x, src, dst)
        return self.head(x)


def load(n):
    if MENDED:
        n = min(n, LIMIT)  # decimated
    features = torch.randn(n, 6)
    edges = torch.randint(0, n, (2, 6 * n))
    labels = torch.randint(0, 17, (n,))
    return features.cuda(), edges[0].cuda(), edges[1].cuda(), labels.cuda()


net = JawNet().cuda()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for name, n in enumerate(VERTICES):
    x, src, dst, y = load(n)
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x, src, dst), y)
    loss.backward()
    optimizer.step()
    print("mesh", name)
