"""cuDNN tries algorithms and takes the fastest, whatever memory it wants."""

import torch
from torch import nn

torch.backends.cudnn.benchmark = True
model = nn.Sequential(*[nn.Conv2d(256, 256, 3, padding=1) for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.randn(8, 256, 224, 224, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
