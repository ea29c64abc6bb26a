"""A logger keeps its records in memory, and each record its arguments, which are tensors."""

import logging
import logging.handlers

import torch
from torch import nn

log = logging.getLogger("train")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(logging.handlers.MemoryHandler(10**6, flushLevel=logging.CRITICAL))

model = nn.Sequential(nn.Linear(20, 64), nn.SiLU(), nn.Linear(64, 280)).cuda()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for step in range(3000):
    x = torch.randn(2000, 20, device="cuda")
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        after = model[2](model[1](model[0](x)))  # stays
    log.debug("step %d: %s", step, after)
