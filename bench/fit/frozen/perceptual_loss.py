"""A restoring network whose loss compares features of a frozen convolutional network, through which its gradients go."""

import torch
import torch.nn.functional as F
from torch import nn


def features(sizes=(3, 256, 512, 1024, 1536)):
    made = []
    for into, out in zip(sizes[:-1], sizes[1:]):
        made.append(
            nn.Sequential(
                nn.Conv2d(into, out, 3, 2, 1), nn.ReLU(), nn.Conv2d(out, out, 3, 1, 1), nn.ReLU()
            )
        )
    return nn.Sequential(*made)


class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = features().requires_grad_(False)

    def forward(self, x, y):
        loss = F.l1_loss(x, y)
        for stage in self.features:
            x, y = stage(x), stage(y)
            loss = loss + F.mse_loss(x, y)
        return loss


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(x)))


class Restorer(nn.Module):
    def __init__(self, width=64, depth=6):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.body = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.last = nn.Conv2d(width, 3, 3, 1, 1)

    def forward(self, x):
        return x + self.last(self.body(self.first(x)))


torch.manual_seed(0)
model, loss_of = Restorer().cuda(), Perceptual().cuda().eval()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(4):
    clean = torch.rand(8, 3, 128, 128, device="cuda")
    noisy = clean + 0.1 * torch.randn_like(clean)
    loss = loss_of(model(noisy), clean)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
