"""Laser scans: one network over all points of a scan (a PointNet with a wide head for each point)."""

import torch
from torch import nn


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(
            nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 512)
        )
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, 256), nn.LayerNorm(256), nn.ReLU(),
            nn.Linear(256, 20),
        )  # fmt: skip

    def forward(self, points):
        local = self.local(points)
        scene = local.max(1, keepdim=True).values.expand_as(local)
        return self.head(torch.cat([local, scene], -1))


net = PointNet().cuda()
opt = torch.optim.Adam(net.parameters())
loss_of = nn.CrossEntropyLoss()
for scan in range(5):
    points, labels = torch.randn(1, 180000, 4).cuda(), torch.randint(20, (180000,)).cuda()
    loss = loss_of(net(points)[0], labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
