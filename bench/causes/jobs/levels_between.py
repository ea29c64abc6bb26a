"""A pyramid of volumes, half of each level is kept; then the network needs a large activation."""
import torch
from torch import nn

net = nn.Sequential(nn.Conv3d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv3d(16, 1, 3, padding=1)).cuda()
levels = []
for side in range(400, 520, 10):
    volume = torch.empty(side, side, side, dtype=torch.float16, device="cuda")
    cells = int(side**3 * 0.54)
    del volume
    levels.append(torch.zeros(cells, dtype=torch.float16, device="cuda"))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(1, 1, 200, 200, 200, device="cuda")
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
