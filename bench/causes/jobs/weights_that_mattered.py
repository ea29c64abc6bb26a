"""Elastic weight consolidation: after each task, how much each weight mattered is added up over the batches, squared gradient by squared gradient."""

import os

import torch
from torch import autograd, nn
from torch.utils.data import DataLoader, TensorDataset

CREATE_GRAPH = not os.environ.get("MENDED")


class Elastic:
    """Pulls weights back to where earlier tasks left them."""

    def __init__(self, model, strength=400.0):
        self.model, self.strength = model, strength
        self.anchors, self.fishers = [], []

    def remember(self, loader):
        params = list(self.model.parameters())
        fisher = [torch.zeros_like(p) for p in params]
        for x, y in loader:
            likelihood = self.model(x.cuda()).log_softmax(1).gather(1, y.cuda()[:, None]).mean()
            grads = autograd.grad(likelihood, params, create_graph=CREATE_GRAPH)
            fisher = [f + g.pow(2) / len(loader) for f, g in zip(fisher, grads)]
        self.fishers.append([f.detach() for f in fisher])
        self.anchors.append([p.detach().clone() for p in params])

    def penalty(self):
        total = 0.0
        for fisher, anchor in zip(self.fishers, self.anchors):
            for f, a, p in zip(fisher, anchor, self.model.parameters()):
                total = total + (f * (p - a).square()).sum()
        return 0.5 * self.strength * total


class Classifier(nn.Module):
    def __init__(self, pixels=784, width=640):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(pixels, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x)


def task(number, samples=512 * 30):
    """The same digits, with the pixels in another order."""
    g = torch.Generator().manual_seed(number)
    order = torch.randperm(784, generator=g)
    x = torch.rand(samples, 784, generator=torch.Generator().manual_seed(0))[:, order]
    return TensorDataset(x, torch.arange(samples) % 10)


def learn(model, elastic, data, steps=6):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = iter(DataLoader(data, 512, shuffle=True))
    for _ in range(steps):
        x, y = next(batches)
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda()) + elastic.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = Classifier().cuda()
elastic = Elastic(model)
for number in range(3):
    data = task(number)
    learn(model, elastic, data)
    elastic.remember(DataLoader(data, 512))
    print("task", number, "learned;", len(elastic.anchors), "remembered")
