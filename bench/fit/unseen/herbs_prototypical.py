"""Herbs from few examples by prototypical networks: ResNet-12 with DropBlock, 20 ways in each episode, a learned temperature, a rotation task beside it."""

import torch
from torch import nn, optim
from torch.nn import functional as F


class DropBlock(nn.Module):
    def __init__(self, rate, size):
        super().__init__()
        self.rate, self.size = rate, size

    def forward(self, x):
        if not self.training:
            return x
        h = x.shape[-1]
        gamma = self.rate * h**2 / self.size**2 / (h - self.size + 1) ** 2
        seeds = (torch.rand_like(x) < gamma).to(x.dtype)
        holes = F.max_pool2d(seeds, self.size, stride=1, padding=self.size // 2)
        keep = 1 - holes
        return x * keep * (keep.numel() / keep.sum().clamp_min(1))


class Stage(nn.Module):
    def __init__(self, i, o, drop):
        super().__init__()
        layers = []
        for k in range(3):
            layers += [
                nn.Conv2d(i if k == 0 else o, o, 3, padding=1, bias=False),
                nn.BatchNorm2d(o),
            ]
            if k < 2:
                layers.append(nn.LeakyReLU(0.1, inplace=True))
        self.main = nn.Sequential(*layers)
        self.side = nn.Sequential(nn.Conv2d(i, o, 1, bias=False), nn.BatchNorm2d(o))
        self.after = nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.MaxPool2d(2), drop)

    def forward(self, x):
        return self.after(self.main(x) + self.side(x))


class ResNet12(nn.Sequential):
    def __init__(self, widths=(64, 160, 320, 640)):
        drops = [nn.Dropout(0.1), nn.Dropout(0.1), DropBlock(0.1, 5), DropBlock(0.1, 5)]
        chans = (3, *widths)
        super().__init__(
            *[Stage(a, b, d) for a, b, d in zip(chans, widths, drops)],
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


class Episodes:
    def __init__(self, ways=20, shots=1, queries=4, side=84, count=5):
        self.__dict__.update(locals())

    def __iter__(self):
        for _ in range(self.count):
            x = torch.randn(self.ways, self.shots + self.queries, 3, self.side, self.side)
            yield x[:, : self.shots].cuda(), x[:, self.shots :].cuda()


encoder, turns = ResNet12().cuda(), nn.Linear(640, 4).cuda()
temperature = torch.tensor(10.0, device="cuda", requires_grad=True)
sgd = optim.SGD(
    [*encoder.parameters(), *turns.parameters(), temperature],
    lr=0.1,
    momentum=0.9,
    nesterov=True,
    weight_decay=5e-4,
)
plan = optim.lr_scheduler.MultiStepLR(sgd, [20, 40], 0.06)

for n, (support, query) in enumerate(Episodes()):
    ways, shots, queries = *support.shape[:2], query.shape[1]
    z = encoder(torch.cat([support.flatten(0, 1), query.flatten(0, 1)]))
    prototypes = z[: ways * shots].view(ways, shots, -1).mean(1)
    logits = temperature * F.normalize(z[ways * shots :]) @ F.normalize(prototypes).t()
    target = torch.arange(ways, device="cuda").repeat_interleave(queries)
    quarter = torch.randint(4, (1,)).item()
    turned = turns(encoder(query[:, 0].rot90(quarter, (-2, -1))))
    rotation = F.cross_entropy(turned, torch.full((ways,), quarter, device="cuda"))
    loss = F.cross_entropy(logits, target) + 0.5 * rotation
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    plan.step()
    right = (logits.argmax(1) == target).float().mean()
    print(f"episode {n}: loss {loss.item():.3f}, right {right.item():.3f}")
