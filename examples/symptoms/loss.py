"""A language model: 128,000 words for each of 16,384 tokens."""

import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(nn.Embedding(128000, 512), nn.Linear(512, 128000, bias=False)).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    tokens = torch.randint(128000, (8, 1024), device="cuda")
    logits = model(tokens).float()
    loss = F.cross_entropy(logits[:, :-1].reshape(-1, 128000), tokens[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
