"""The sum of the losses keeps the graph of each step."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters())
total = 0.0
for _ in range(2000):
    hidden = model[1](model[0](torch.randn(1024, 2048, device="cuda")))
    loss = model[2](hidden).mean()
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    total += loss
