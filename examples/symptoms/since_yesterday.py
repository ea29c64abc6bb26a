"""The same with dropout, which keeps a mask for each layer."""

import torch
from torch import nn

layers = [nn.Sequential(nn.Linear(2048, 2048), nn.GELU(), nn.Dropout(0.1)) for _ in range(8)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8192, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
