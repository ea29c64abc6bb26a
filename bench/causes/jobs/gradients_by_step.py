"""Which example taught the network what? The gradient of every step is written down, to be compared afterwards."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class Diary:
    """A page for each step: all its gradients in one row."""

    def __init__(self, model):
        self.model, self.pages = model, []

    def write(self):
        page = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        self.pages.append(page.half().cpu() if MENDED else page)

    def influence(self):
        """How much each step went the way of the last one."""
        last = self.pages[-1].cuda().float()
        return [(page.cuda().float() @ last).item() for page in self.pages]


def tabular(columns=64, width=1024, depth=6):
    def block():
        return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Mish())

    return nn.Sequential(
        nn.Linear(columns, width), *[block() for _ in range(depth)], nn.Linear(width, 2)
    )


model = tabular().cuda()
diary = Diary(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(40):
    rows, churned = torch.randn(64, 64, device="cuda"), torch.randint(0, 2, (64,), device="cuda")
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(rows), churned).backward()
    diary.write()
    optimizer.step()
print(max(diary.influence()[:-1]))
