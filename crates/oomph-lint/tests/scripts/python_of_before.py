"""Training for a Python before 3.7: no Python that runs PyTorch today reads the file, so nothing else is said of it."""
import torch


def train(model, loader, optimizer, criterion):
    for x, y in loader:
        loss = criterion(model(x.cuda(async=True)), y.cuda())  # OOM605
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluate(model, loader):
    model.eval()
    for x, y in loader:
        print(model(x.cuda()).argmax(1))
