"""Traffic signs. A prefetcher brings batches to the GPU before they are needed, and keeps those that are done with."""

import os
from collections import deque

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Signs(Dataset):
    def __init__(self, count=64 * 44, side=112):
        self.count, self.side = count, side

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        # A sign is a plain square of one colour. The loader has bytes; numbers are made on the GPU.
        colour = torch.tensor([(i * k) % 256 for k in (3, 7, 13)], dtype=torch.uint8)
        return colour.view(3, 1, 1).expand(3, self.side, self.side), i % 43


class Prefetcher:
    """Copies some batches ahead of the step, on a stream of its own."""

    def __init__(self, loader, ahead=3):
        self.source, self.ahead = iter(loader), ahead
        self.stream = torch.cuda.Stream()
        self.mean = torch.tensor([0.34, 0.31, 0.32], device="cuda").view(1, 3, 1, 1)
        self.ready, self.at = deque(), 0
        for _ in range(ahead):
            self.fetch()

    def fetch(self):
        try:
            images, labels = next(self.source)
        except StopIteration:
            return
        with torch.cuda.stream(self.stream):
            images = images.cuda(non_blocking=True).float().div_(255).sub_(self.mean)
            self.ready.append((images, labels.cuda(non_blocking=True)))

    def __iter__(self):
        while self.at < len(self.ready):
            torch.cuda.current_stream().wait_stream(self.stream)
            if os.environ.get("MENDED"):
                batch = self.ready.popleft()
            else:
                batch = self.ready[self.at]
                self.at += 1
            for t in batch:
                t.record_stream(torch.cuda.current_stream())
            self.fetch()
            yield batch


def separable(i, o, stride):
    return nn.Sequential(
        nn.Conv2d(i, i, 3, stride, 1, groups=i, bias=False), nn.BatchNorm2d(i), nn.ReLU6(),
        nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU6(),
    )  # fmt: skip


net = nn.Sequential(
    nn.Conv2d(3, 16, 3, 4, 1), nn.ReLU6(), separable(16, 32, 1), separable(32, 64, 2),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 43),
).cuda()  # fmt: skip
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
loader = DataLoader(Signs(), batch_size=64, drop_last=True)
for step, (images, labels) in enumerate(Prefetcher(loader)):
    loss = nn.functional.cross_entropy(net(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
