"""Resuming loads the checkpoint to the GPU, and keeps it there while training goes on."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(9)]).cuda()
torch.save({"model": model.state_dict()}, "checkpoint.pt")
optimizer = torch.optim.AdamW(model.parameters())
checkpoint = torch.load("checkpoint.pt", map_location="cuda")
model.load_state_dict(checkpoint["model"])
for _ in range(3):
    model(torch.randn(16, 2048, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
