"""Batches that are refused are noted with the exception, whose traceback holds the frame with the batch."""

import torch
from torch import nn


class Refused(ValueError):
    pass


def check(batch):
    table = batch.cuda().repeat(1, 8)  # stays
    if len(batch) % 2 == 0:
        raise Refused(f"{tuple(table.shape)} is even")
    return table


model = nn.Linear(2048, 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
refused = []
for step in range(3000):
    try:
        check(torch.randn(280, 256))
    except Refused as error:
        refused.append(error)
    loss = model(torch.randn(64, 2048, device="cuda")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
