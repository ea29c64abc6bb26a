"""The weights fit four times over, but AdamW's first step adds twice their bytes."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False, device="cuda") for _ in range(13)])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(16, 8192, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
