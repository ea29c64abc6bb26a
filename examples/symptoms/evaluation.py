"""Training fits; the evaluation builds a graph over all batches."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(16)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def evaluate(batches):
    model.eval()
    losses = []
    for x in batches:
        losses.append(model(x).square().mean())
    return torch.stack(losses).mean()


for _ in range(3):
    model(torch.randn(4096, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(evaluate(torch.randn(8192, 2048, device="cuda") for _ in range(20)))
