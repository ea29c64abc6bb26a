"""The name that functions read holds what `torch.load` returned by the end: the model itself."""

import torch
from torch import nn

device = "cuda"


def right(batches):
    model.eval()
    count = 0
    for _ in range(100):
        x, y = next(batches)
        count += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()  # OOM205
    model.train()
    return count


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1024, 10)

    def forward(self, x):
        return self.layer(x)


def made():
    net = Net().to(device)
    torch.save(net, "net.pth")


made()
model = torch.load("net.pth", map_location="cpu")
optimizer = torch.optim.AdamW(model.parameters())
