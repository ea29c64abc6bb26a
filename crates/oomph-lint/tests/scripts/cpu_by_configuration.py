"""The configuration says where it computes."""
import torch

config = {"training": {"device": "cpu", "batch_size": 8}}  # "cuda" or "cpu"


def evaluate(model, loader):
    model.eval()
    total = 0
    for x, y in loader:
        out = model(x.to(config["training"]["device"]))
        total += (out.argmax(1) == y).sum().item()
    return total


def train(model, loader, optimizer, criterion):
    model = model.to(config["training"]["device"])
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
