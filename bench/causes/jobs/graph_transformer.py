"""Every road junction attends to every other one, with a bias by distance, in each of six layers."""

import os

import torch
import torch.nn.functional as F
from torch import nn

LINEAR = bool(os.environ.get("MENDED"))


class GraphAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.q, self.k, self.v, self.o = (
            heads,
            *[nn.Linear(width, width) for _ in range(4)],
        )
        self.by_distance = nn.Parameter(torch.zeros(heads))

    def split(self, x):
        return x.view(x.shape[0], self.heads, -1).transpose(0, 1)

    def forward(self, nodes, hops):
        q, k, v = self.split(self.q(nodes)), self.split(self.k(nodes)), self.split(self.v(nodes))
        if LINEAR:
            q, k = F.elu(q) + 1, F.elu(k) + 1
            mixed = q @ (k.transpose(1, 2) @ v) / (q @ k.sum(1).unsqueeze(-1))
        else:
            scores = torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5
            scores = scores + self.by_distance.view(-1, 1, 1) * hops
            weights = F.dropout(scores.softmax(-1), 0.1, self.training)
            mixed = torch.bmm(weights, v)
        return self.o(mixed.transpose(0, 1).flatten(1))


class Layer(nn.Module):
    def __init__(self, width=64, heads=8):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = GraphAttention(width, heads)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, nodes, hops):
        nodes = nodes + self.attention(self.n1(nodes), hops)
        return nodes + self.ff(self.n2(nodes))


class Roads(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(9, 64)
        self.layers = nn.ModuleList(Layer() for _ in range(6))
        self.flow = nn.Linear(64, 1)

    def forward(self, features, hops):
        nodes = self.enter(features)
        for layer in self.layers:
            nodes = layer(nodes, hops)
        return self.flow(nodes)


junctions = 3000
net = Roads().to("cuda")
optim = torch.optim.RMSprop(net.parameters(), 1e-3)
hops = torch.randint(0, 16, (junctions, junctions), device="cuda").float()
for epoch in range(3):
    net.train()
    optim.zero_grad()
    traffic = torch.rand(junctions, 1, device="cuda")
    loss = F.smooth_l1_loss(net(torch.randn(junctions, 9, device="cuda"), hops), traffic)
    loss.backward()
    optim.step()
