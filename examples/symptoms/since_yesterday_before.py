"""The job as it was."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8192, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
