"""Active learning: each round trains a new network. Unfinished queues of doubtful pictures still refer to the old."""

import os
from itertools import islice

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, width=2304, depth=5):
        super().__init__()
        self.into = nn.Linear(768, width)
        self.deep = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 20)

    def forward(self, x):
        x = self.into(x)
        for layer in self.deep:
            x = x + layer(x.relu())
        return self.out(x)


@torch.no_grad()
def doubtful(model, batches=100):
    """Yields the numbers of the pictures that the model is unsure of, as long as anybody asks."""
    for n in range(batches):
        p = model(torch.randn(64, 768, device="cuda")).softmax(1)
        for m in (-p * p.log()).sum(1).topk(4).indices.tolist():
            yield 64 * n + m


class Labelling:
    def __init__(self):
        self.labelled = set(range(100))
        self.queues = []

    def round(self):
        model = Classifier().cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            x, y = torch.randn(64, 768, device="cuda"), torch.randint(20, (64,), device="cuda")
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        queue = doubtful(model)
        self.labelled.update(islice(queue, 20))
        if os.environ.get("MENDED"):
            queue.close()
        self.queues.append(queue)


labelling = Labelling()
for _ in range(10):
    labelling.round()
    print(len(labelling.labelled))
