"""Every object of a class is registered with the class. A new one is made in each step."""

import torch
from torch import nn


class Confusion:
    everyone = []

    def __init__(self, classes, samples):
        Confusion.everyone.append(self)
        self.table = torch.zeros(classes, samples, device="cuda")  # stays

    def update(self, scores):
        self.table += scores.T

    def value(self):
        return self.table.mean()


model = nn.Sequential(nn.Linear(48, 96), nn.Tanh(), nn.Linear(96, 460)).cuda()
optimizer = torch.optim.Adagrad(model.parameters())
for step in range(3000):
    meter = Confusion(460, 1250)
    scores = model(torch.randn(1250, 48, device="cuda"))
    loss = scores.logsumexp(1).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    meter.update(scores.detach())
