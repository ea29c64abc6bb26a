"""A model of 7 billion parameters, in fp32."""

import torch
from torch import nn

model = nn.ModuleList([nn.Linear(4096, 4096, bias=False, device="cuda") for _ in range(420)])
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(1, 4096, device="cuda")
for layer in model:
    x = layer(x)
x.sum().backward()
optimizer.step()
