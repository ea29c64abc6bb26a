"""PointNet on scans of different sizes; one has twenty times as many points."""
import torch
from torch import nn


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.local = nn.Sequential(
            nn.Conv1d(3, 64, 1), nn.ReLU(), nn.Conv1d(64, 256, 1), nn.ReLU(), nn.Conv1d(256, 1024, 1)
        )
        self.head = nn.Linear(1024, 40)

    def forward(self, points):
        return self.head(self.local(points).amax(2))


net = PointNet().cuda()
optimizer = torch.optim.Adam(net.parameters())
for points in [4000, 5000, 4500, 5200, 3900, 100_000, 4200]:
    scan = torch.randn(8, 3, points, device="cuda")
    loss = nn.functional.cross_entropy(net(scan), torch.randint(0, 40, (8,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
