"""Two training functions in one file; only the second runs."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class ConvNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.GELU())
            for _ in range(6)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = x + b(x)
        return self.head(x.mean((2, 3)))


def loader(n=96, bs=32):
    return DataLoader(
        TensorDataset(torch.randn(n, 3, 96, 96), torch.randint(0, 10, (n,))), batch_size=bs
    )


def pretrain(epochs=1):
    model = ConvNet().cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for x, _ in loader():
            x = x.cuda()
            opt.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            opt.step()
    return model


def finetune(epochs=2):
    model = ConvNet().cuda()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for x, y in loader():
            x, y = x.cuda(), y.cuda()
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        print(epoch, loss.item())
    return model


if __name__ == "__main__":
    finetune()
