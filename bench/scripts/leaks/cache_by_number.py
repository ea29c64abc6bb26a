"""Features of every batch are cached by its number, and no batch comes again."""

import functools

import torch
from torch import nn

backbone = nn.Sequential(nn.Linear(100, 200), nn.GELU(), nn.Linear(200, 580)).cuda().eval()
head = nn.Linear(580, 3).cuda()
optimizer = torch.optim.Adam(head.parameters())


@functools.lru_cache(maxsize=None)
def features(number):
    g = torch.Generator().manual_seed(number)
    with torch.no_grad():
        hidden = backbone[1](backbone[0](torch.randn(1000, 100, generator=g).cuda()))
        return backbone[2](hidden)  # stays


for number in range(3000):
    loss = head(features(number)).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
