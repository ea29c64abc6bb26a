"""From drawings to carvings by maximum classifier discrepancy: two classifiers, two optimizers, three steps for each batch."""

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 31


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 96, 11, 4, padding=2), nn.ReLU(True), nn.MaxPool2d(3, 2),
            nn.LocalResponseNorm(5), nn.Conv2d(96, 256, 5, padding=2, groups=2), nn.ReLU(True),
            nn.MaxPool2d(3, 2), nn.LocalResponseNorm(5), nn.Conv2d(256, 384, 3, padding=1), nn.ReLU(True),
            nn.Conv2d(384, 384, 3, padding=1, groups=2), nn.ReLU(True),
            nn.Conv2d(384, 256, 3, padding=1, groups=2), nn.ReLU(True), nn.MaxPool2d(3, 2),
        )  # fmt: skip

    def forward(self, x):
        return self.body(x).flatten(1)


class Classifier(nn.Module):
    def __init__(self, width=5120):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(256 * 6 * 6, width),
            nn.BatchNorm1d(width),
            nn.ReLU(True),
            nn.Dropout(0.5),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(True),
            nn.Linear(width, CLASSES),
        )

    def forward(self, x):
        return self.layers(x)


def discrepancy(a, b):
    return (a.softmax(1) - b.softmax(1)).abs().mean()


def pictures(n, shift):
    labels = torch.randint(CLASSES, (n,))
    images = torch.randn(n, 3, 224, 224) + labels.view(-1, 1, 1, 1) / CLASSES + shift
    return images.cuda(), labels.cuda()


class Solver:
    def __init__(self, lr=2e-4, repeats=4):
        self.g, self.f1, self.f2 = Generator().cuda(), Classifier().cuda(), Classifier().cuda()
        heads = [*self.f1.parameters(), *self.f2.parameters()]
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr=lr, weight_decay=5e-4)
        self.opt_f = torch.optim.Adam(heads, lr=lr, weight_decay=5e-4)
        self.repeats = repeats

    def reset(self):
        self.opt_g.zero_grad()
        self.opt_f.zero_grad()

    def source_loss(self, images, labels):
        x = self.g(images)
        return F.cross_entropy(self.f1(x), labels) + F.cross_entropy(self.f2(x), labels)

    def target_gap(self, images):
        x = self.g(images)
        return discrepancy(self.f1(x), self.f2(x))

    def step(self, source, labels, target):
        self.reset()
        loss = self.source_loss(source, labels)
        loss.backward()
        self.opt_g.step()
        self.opt_f.step()

        self.reset()
        (self.source_loss(source, labels) - self.target_gap(target)).backward()
        self.opt_f.step()

        for _ in range(self.repeats):
            self.reset()
            gap = self.target_gap(target)
            gap.backward()
            self.opt_g.step()
        return loss.item(), gap.item()


def main():
    torch.manual_seed(3)
    solver = Solver()
    for step in range(4):
        source, labels = pictures(64, 0.0)
        target, _ = pictures(64, 0.4)
        loss, gap = solver.step(source, labels, target)
        print(f"step {step} loss {loss:.4f} discrepancy {gap:.5f}")


if __name__ == "__main__":
    main()
