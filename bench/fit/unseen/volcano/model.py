import torch.nn as nn
import torch.nn.functional as F


class Residual(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        h = o // 2
        self.conv = nn.Sequential(
            nn.BatchNorm2d(i),
            nn.ReLU(),
            nn.Conv2d(i, h, 1),
            nn.BatchNorm2d(h),
            nn.ReLU(),
            nn.Conv2d(h, h, 3, padding=1),
            nn.BatchNorm2d(h),
            nn.ReLU(),
            nn.Conv2d(h, o, 1),
        )
        self.skip = nn.Identity() if i == o else nn.Conv2d(i, o, 1)

    def forward(self, x):
        return self.skip(x) + self.conv(x)


class Hourglass(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.side = Residual(width, width)
        self.inner_in = Residual(width, width)
        self.inner = Hourglass(width, depth - 1) if depth > 1 else Residual(width, width)
        self.inner_out = Residual(width, width)

    def forward(self, x):
        low = self.inner_out(self.inner(self.inner_in(F.max_pool2d(x, 2))))
        return self.side(x) + F.interpolate(low, scale_factor=2, mode="nearest")


class Stacked(nn.Module):
    def __init__(self, stacks, width, depth, landmarks):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 64, 7, 2, 3),
            Residual(64, width // 2),
            nn.MaxPool2d(2),
            Residual(width // 2, width),
        )
        self.glasses = nn.ModuleList(Hourglass(width, depth) for _ in range(stacks))
        self.features = nn.ModuleList(
            nn.Sequential(
                Residual(width, width), nn.Conv2d(width, width, 1), nn.BatchNorm2d(width), nn.ReLU()
            )
            for _ in range(stacks)
        )
        self.heads = nn.ModuleList(nn.Conv2d(width, landmarks, 1) for _ in range(stacks))
        self.back = nn.ModuleList(nn.Conv2d(landmarks, width, 1) for _ in range(stacks - 1))
        self.merge = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(stacks - 1))

    def forward(self, x):
        x = self.stem(x)
        maps = []
        for i, glass in enumerate(self.glasses):
            f = self.features[i](glass(x))
            maps.append(self.heads[i](f))
            if i < len(self.back):
                x = x + self.merge[i](f) + self.back[i](maps[-1])
        return maps
