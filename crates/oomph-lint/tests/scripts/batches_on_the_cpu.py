"""An old iterator of torchtext makes its batches on the CPU, and nothing moves them."""
import torch
from torchtext import data

USE_CUDA = torch.cuda.is_available()


def evaluate(model, fields, texts):
    model.eval()
    total = 0
    for batch in data.BucketIterator(texts, batch_size=8, device=-1):
        total += model(batch.text).argmax(1).sum().item()
    return total


def train(model, batches, optimizer, criterion):
    for batch in batches:
        loss = criterion(model(batch.text), batch.label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "lm.pth")


def best(net):
    net.load_state_dict(torch.load("lm.pth"))
    return net
