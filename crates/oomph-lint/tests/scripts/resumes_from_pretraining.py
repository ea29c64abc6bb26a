"""The file calls its own checkpoint pretrained: it saves what it reads from there."""

import torch
from torch import nn


def main(args, loader, criterion):
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    if args.pretrained:
        weights = torch.load(args.pretrained)  # OOM501 OOM503
        model.load_state_dict(weights["model_state_dict"])
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
    torch.save({"model_state_dict": model.state_dict()}, "last.pth")
