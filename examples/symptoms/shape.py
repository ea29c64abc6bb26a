"""A loss over (batch,) and (batch, 1): broadcasting makes (batch, batch)."""

import torch
from torch import nn

model = nn.Linear(64, 1).cuda()
optimizer = torch.optim.SGD(model.parameters())
x, y = torch.randn(100_000, 64, device="cuda"), torch.randn(100_000, device="cuda")
for _ in range(3):
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
