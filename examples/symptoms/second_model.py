"""Each experiment makes a model; the list of results keeps all of them."""

import torch
from torch import nn

results = []
for width in (8192, 8192, 8192, 8192):
    model = nn.Sequential(*[nn.Linear(width, width, bias=False, device="cuda") for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        loss = model(torch.randn(32, width, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    results.append((model, optimizer, loss.item()))
