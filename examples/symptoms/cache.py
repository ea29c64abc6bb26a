"""empty_cache() in each step, and the activations are as large as before."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Sequential(nn.Linear(4096, 4096), nn.GELU()) for _ in range(12)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    torch.cuda.empty_cache()
    model(torch.randn(32768, 4096, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
