"""A bank of negatives is joined with the keys of each batch, and never cut."""

import torch
import torch.nn.functional as F
from torch import nn

encode = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 288)).cuda()
optimizer = torch.optim.SGD(encode.parameters(), lr=0.01)
bank = torch.randn(500, 288, device="cuda")
for step in range(3000):
    x = torch.randn(2000, 64, device="cuda")
    keys = F.normalize(encode(x), dim=1)
    loss = (keys[:64] @ bank[-500:].T).logsumexp(1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bank = torch.cat([bank, keys.detach()])  # stays
