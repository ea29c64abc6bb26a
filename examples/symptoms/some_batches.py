"""Sequences of many lengths; one is much longer than the rest."""

import torch
from torch import nn

layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
model = nn.TransformerEncoder(layer, 6).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for length in (210, 180, 240, 230, 4000, 190):
    model(torch.randn(32, length, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
