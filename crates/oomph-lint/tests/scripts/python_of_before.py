"""`async` as the name of an argument: no Python that runs PyTorch 2.0 reads it, so nothing else is said of memory."""
import torch


def train(model, loader, optimizer, criterion):
    for x, y in loader:
        x, y = x.cuda(async=True), y.cuda()  # OOM605
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluate(model, loader):
    model.eval()
    for x, y in loader:
        print(model(x.cuda()).argmax(1))
