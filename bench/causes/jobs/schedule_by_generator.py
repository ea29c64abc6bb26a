"""Training as a generator of losses. Its optimizer (AdamW, amsgrad) keeps three numbers for each weight."""

import os

import torch
from torch import nn
from torch.nn import functional as F

ADAPTIVE = not os.environ.get("MENDED")


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x):
        return x + self.c(F.silu(self.a(x)) * self.b(x))


def losses(net, batches):
    """One step for each batch."""
    params = list(net.parameters())
    make = torch.optim.AdamW if ADAPTIVE else torch.optim.SGD
    optimizer = make(params, lr=1e-3, **(dict(amsgrad=True) if ADAPTIVE else {}))
    for x, y in batches:
        loss = F.smooth_l1_loss(net(x), y)
        net.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss.detach()


with torch.device("cuda"):
    net = nn.Sequential(*(Gated(1536) for _ in range(8)))
prices = ((torch.randn(64, 1536).cuda(), torch.randn(64, 1536).cuda()) for _ in range(3))
print(torch.stack(list(losses(net, prices))).mean())
