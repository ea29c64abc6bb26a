"""Pollen under the microscope. Batch normalization is written by hand, and its running variance remembers how it came about."""

import os

import torch
from torch import nn


class BatchNorm(nn.Module):
    """As in the paper: the variance of the batch is biased, the one that is kept for later is not."""

    def __init__(self, channels, momentum=0.1, eps=1e-5):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.gain = nn.Parameter(torch.ones(channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))
        self.register_buffer("running_mean", torch.zeros(channels, 1, 1))
        self.register_buffer("running_var", torch.ones(channels, 1, 1))

    def update(self, x):
        m, over = self.momentum, (0, 2, 3)
        mean = x.mean(over, keepdim=True)[0]
        var = x.var(over, keepdim=True, unbiased=True)[0]
        self.running_mean = (1 - m) * self.running_mean + m * mean
        self.running_var = (1 - m) * self.running_var + m * var

    def forward(self, x):
        if self.training:
            var, mean = torch.var_mean(x, (0, 2, 3), keepdim=True, unbiased=False)
            if os.environ.get("MENDED"):
                with torch.no_grad():
                    self.update(x)
            else:
                self.update(x)
        else:
            mean, var = self.running_mean, self.running_var
        return (x - mean) * torch.rsqrt(var + self.eps) * self.gain + self.bias


def stage(fan_in, fan_out):
    return nn.Sequential(
        nn.Conv2d(fan_in, fan_out, 3, stride=2, padding=1, bias=False), BatchNorm(fan_out), nn.ReLU(),
        nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False), BatchNorm(fan_out), nn.ReLU(),
    )  # fmt: skip


net = nn.Sequential(
    stage(1, 32), stage(32, 64), stage(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 46)
).cuda()  # fmt: skip
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)

generator = torch.Generator().manual_seed(46)
grains = torch.rand(16 * 24, 1, 96, 96, generator=generator)
plants = torch.randint(46, (16 * 24,), generator=generator)

for epoch in range(2):
    net.train()
    seen = right = 0
    for x, y in zip(grains.split(24), plants.split(24)):
        x, y = x.cuda(), y.cuda()
        scores = net(x)
        loss = criterion(scores, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        right += (scores.argmax(1) == y).sum().item()
        seen += len(y)
    print(f"epoch {epoch}: {right / seen:.1%} right")

net.eval()
with torch.no_grad():
    print(net(grains[:8].cuda()).argmax(1))
