"""A network over parse trees, level by level from the leaves. One of the trees is a whole generated file."""

import os

import torch
from torch import nn

LEAVES = [64, 256, 128, 512, 128, 64, 65_536, 256, 128]


class Node(nn.Module):
    """Joins two children of a binary tree (Tree-LSTM)."""

    def __init__(self, width):
        super().__init__()
        self.gates = nn.Linear(2 * width, 5 * width)

    def forward(self, h, c):
        gates = self.gates(torch.cat([h[0::2], h[1::2]], 1))
        i, left, right, o, u = gates.chunk(5, 1)
        c = i.sigmoid() * u.tanh() + left.sigmoid() * c[0::2] + right.sigmoid() * c[1::2]
        return o.sigmoid() * c.tanh(), c


class Parser(nn.Module):
    def __init__(self, symbols=500, width=512, kinds=12):
        super().__init__()
        self.leaf = nn.Embedding(symbols, 2 * width)
        self.node = Node(width)
        self.kind = nn.Linear(width, kinds)

    def forward(self, tree):
        h, c = self.leaf(tree).chunk(2, 1)
        while len(h) > 1:
            h, c = self.node(h, c)
        return self.kind(h)


def programs():
    for n in LEAVES:
        if os.environ.get("MENDED") and n > 4096:
            continue
        yield torch.randint(0, 500, (n,)), torch.randint(0, 12, (1,))


parser = Parser().cuda()
optimizer = torch.optim.Adagrad(parser.parameters(), lr=0.05)
criterion = nn.CrossEntropyLoss()
for tree, kind in programs():
    optimizer.zero_grad()
    criterion(parser(tree.cuda()), kind.cuda()).backward()
    optimizer.step()
