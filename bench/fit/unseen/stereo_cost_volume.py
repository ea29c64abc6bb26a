"""Depth from two cameras: features of both views, a cost volume over 48 disparities, stacked 3-D hourglasses, soft argmin, batch of two, RMSprop."""

import torch
from torch import nn
from torch.nn import functional as F


def convbn(i, o, k=3, s=1, d=1):
    return nn.Sequential(
        nn.Conv2d(i, o, k, s, d * (k // 2), d, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)
    )


def convbn3d(i, o, s=1):
    return nn.Sequential(nn.Conv3d(i, o, 3, s, 1, bias=False), nn.BatchNorm3d(o))


class Features(nn.Sequential):
    def __init__(self):
        super().__init__(
            convbn(3, 32, s=2),
            convbn(32, 32),
            convbn(32, 64, s=2),
            convbn(64, 64),
            convbn(64, 64, d=2),
            convbn(64, 64, d=4),
            nn.Conv2d(64, 32, 1, bias=False),
        )


class Hourglass(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.a = convbn3d(c, 2 * c, 2)
        self.b = convbn3d(2 * c, 2 * c)
        self.c = convbn3d(2 * c, 2 * c, 2)
        self.d = nn.ConvTranspose3d(2 * c, 2 * c, 3, 2, 1, 1, bias=False)
        self.e = nn.ConvTranspose3d(2 * c, c, 3, 2, 1, 1, bias=False)

    def forward(self, x):
        y = F.relu(self.b(F.relu(self.a(x))))
        z = F.relu(self.d(F.relu(self.c(y))) + y)
        return self.e(z) + x


class Stereo(nn.Module):
    def __init__(self, disparities=192):
        super().__init__()
        self.d = disparities // 4
        self.features = Features()
        self.start = nn.Sequential(convbn3d(64, 32), nn.ReLU(), convbn3d(32, 32), nn.ReLU())
        self.glasses = nn.ModuleList([Hourglass(), Hourglass()])
        self.heads = nn.ModuleList(
            [
                nn.Sequential(convbn3d(32, 32), nn.ReLU(), nn.Conv3d(32, 1, 3, 1, 1, bias=False))
                for _ in range(2)
            ]
        )
        self.register_buffer("values", torch.arange(disparities).float().view(1, -1, 1, 1))

    def volume(self, left, right):
        cost = left.new_zeros(left.shape[0], 64, self.d, *left.shape[2:])
        for i in range(self.d):
            cost[:, :32, i, :, i:] = left[..., i:]
            cost[:, 32:, i, :, i:] = right[..., : right.shape[-1] - i]
        return cost

    def forward(self, left, right):
        x = self.start(self.volume(self.features(left), self.features(right)))
        maps = []
        for glass, head in zip(self.glasses, self.heads):
            x = glass(x)
            cost = F.interpolate(head(x), scale_factor=4, mode="trilinear").squeeze(1)
            maps.append((cost.softmax(1) * self.values).sum(1))
        return maps


model = Stereo().cuda()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for step in range(5):
    left, right = torch.randn(2, 2, 3, 256, 448).cuda()
    truth = (torch.rand(2, 256, 448) * 190).cuda()
    first, second = model(left, right)
    loss = 0.5 * F.smooth_l1_loss(first, truth) + F.smooth_l1_loss(second, truth)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
