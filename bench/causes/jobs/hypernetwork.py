"""A hypernetwork makes all weights of a small classifier with one layer; that layer is huge."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")
SHAPES = [(512, 784), (512,), (512, 512), (512,), (10, 512), (10,)]
COUNT = sum(torch.Size(shape).numel() for shape in SHAPES)


class Whole(nn.Module):
    """From a task to every weight at once."""

    def __init__(self, width=512):
        super().__init__()
        self.tasks = nn.Embedding(20, width)
        self.make = nn.Linear(width, COUNT)

    def forward(self, task):
        return self.make(self.tasks(task))


class Pieces(nn.Module):
    """From a task and a piece's number to the weights of that piece."""

    def __init__(self, width=512, piece=4096):
        super().__init__()
        self.tasks = nn.Embedding(20, width)
        self.pieces = nn.Parameter(torch.randn(-(-COUNT // piece), width))
        self.make = nn.Linear(width, piece)

    def forward(self, task):
        return self.make(self.tasks(task) + self.pieces).flatten()[:COUNT]


def classify(weights, x):
    parts = weights.split([torch.Size(shape).numel() for shape in SHAPES])
    parts = [part.view(shape) for part, shape in zip(parts, SHAPES)]
    x = F.relu(F.linear(x, parts[0], parts[1]))
    x = F.relu(F.linear(x, parts[2], parts[3]))
    return F.linear(x, parts[4], parts[5])


with torch.device("cuda"):
    network = Pieces() if MENDED else Whole()
optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
for step in range(5):
    x, y = torch.randn(8, 784, device="cuda"), torch.randint(0, 10, (8,), device="cuda")
    loss = F.cross_entropy(classify(network(torch.tensor(step, device="cuda")), x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
