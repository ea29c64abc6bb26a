"""A model of 7 billion parameters, in fp32."""

import torch
from torch import nn

with torch.device("meta"):
    model = nn.Sequential(*[nn.Linear(4096, 4096, bias=False) for _ in range(420)])
model = model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(1, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
