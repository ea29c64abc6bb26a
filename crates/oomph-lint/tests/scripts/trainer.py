"""A trainer class: methods call each other, attributes hold the parts."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class AverageMeter:
    def __init__(self):
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 8, batch_first=True)
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        x, _ = self.attn(x, x, x)  # OOM804
        return self.head(x)


class Trainer:
    def __init__(self, train_loader, val_loader, rank):
        self.net = DDP(Block(64).cuda(rank), device_ids=[rank])  # OOM703
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.loader = train_loader
        self.val_loader = val_loader
        self.best = None

    def compute_loss(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def train_step(self, batch):
        self.opt.zero_grad()
        loss = self.compute_loss(batch)
        loss.backward()
        self.opt.step()
        return loss

    def fit(self, epochs):
        for epoch in range(epochs):
            self.net.train()
            meter = AverageMeter()
            for batch in self.loader:
                loss = self.train_step(batch)
                meter.update(loss, 1)  # OOM107
                meter.update(loss.item(), 1)
            if self.validate():
                self.best = copy.deepcopy(self.net.state_dict())  # OOM504

    def validate(self):
        self.net.eval()
        correct = 0
        for x, y in self.val_loader:
            out = self.net(x.cuda())  # OOM201
            correct += (out.argmax(-1) == y).sum().item()
        return correct

    def test(self):
        self.net.eval()
        with torch.no_grad():
            return self._run(self.val_loader)

    def _run(self, loader):
        return [self.net(x).argmax(-1) for x, y in loader]
