"""`async` as the name of an argument: no Python that runs PyTorch 2.0 reads it."""
import torch


def train(model, loader, optimizer, criterion):
    for x, y in loader:
        x, y = x.cuda(async=True), y.cuda()  # OOM605
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
