"""MAML on pictures of insects. The quick weights of a task are where the next task begins, with all that led to them."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

MENDED = os.environ.get("MENDED")


class Small(nn.Module):
    def __init__(self, c=32, ways=5):
        super().__init__()
        layers, i = [], 3
        for _ in range(4):
            layers += [
                nn.Conv2d(i, c, 3, padding=1),
                nn.GroupNorm(8, c),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
            i = c
        self.net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(c * 25, ways))

    def forward(self, x):
        return self.net(x)


def task(ways=5, shots=3, queries=4):
    """Pictures to adapt to, and pictures to be judged by."""
    for each in (shots, queries):
        yield torch.rand(ways * each, 3, 84, 84).cuda()
        yield torch.arange(ways).repeat_interleave(each).cuda()


class Meta:
    def __init__(self, inner=0.05):
        self.model, self.inner, self.shift = Small().cuda(), inner, {}
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def adapt(self, x, y, steps=2):
        slow = dict(self.model.named_parameters())
        # Where the last task ended is nearer than the slow weights are.
        quick = {k: w + 0.1 * self.shift.get(k, 0) for k, w in slow.items()}
        for _ in range(steps):
            loss = F.cross_entropy(functional_call(self.model, quick, (x,)), y)
            slopes = torch.autograd.grad(loss, list(quick.values()), create_graph=True)
            quick = {k: w - self.inner * s for (k, w), s in zip(quick.items(), slopes)}
        self.shift = {k: quick[k] - slow[k] for k in slow}
        if MENDED:
            self.shift = {k: s.detach() for k, s in self.shift.items()}
        return quick

    def step(self):
        x, y, asked, answers = task()
        loss = F.cross_entropy(functional_call(self.model, self.adapt(x, y), (asked,)), answers)
        self.optimizer.zero_grad()
        # Without this it says that it goes through the graph a second time.
        loss.backward(retain_graph=not MENDED)
        self.optimizer.step()
        return loss.item()


meta = Meta()
for n in range(12):
    print(n, meta.step())
