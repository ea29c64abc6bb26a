"""Checkpointing covers the whole stack as one segment."""
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU(),
        )  # fmt: skip

    def forward(self, x):
        return x + self.body(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, padding=1)
        self.blocks = nn.Sequential(*[Residual(64) for _ in range(12)])

    def forward(self, x):
        return checkpoint(self.blocks, self.stem(x), use_reentrant=False).mean((2, 3))


net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    loss = net(torch.randn(8, 3, 192, 192, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
