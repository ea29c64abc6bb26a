"""Crops seen by one satellite and then by another: domain-adversarial training of a torchvision RegNet, gradients reversed by an own function, entropy on the target."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torchvision.models import regnet_y_1_6gf


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class DANN(nn.Module):
    def __init__(self, crops=12):
        super().__init__()
        self.features = regnet_y_1_6gf(weights=None)
        width = self.features.fc.in_features
        self.features.fc = nn.Identity()
        self.crop = nn.Linear(width, crops)
        self.domain = nn.Sequential(
            nn.Linear(width, 1024),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(1024, 1024),
            nn.ReLU(True),
            nn.Linear(1024, 1),
        )

    def forward(self, x, strength):
        f = self.features(x)
        return self.crop(f), self.domain(Reverse.apply(f, strength)).squeeze(1)


def sample(n, shift):
    return torch.randn(n, 3, 224, 224) + shift, torch.randint(0, 12, (n,))


def main(total=4, n=20):
    model = DANN().cuda()
    opt = torch.optim.SGD(
        [
            {"params": model.features.parameters(), "lr": 1e-3},
            {"params": [*model.crop.parameters(), *model.domain.parameters()], "lr": 1e-2},
        ],
        momentum=0.9,
        weight_decay=1e-3,
        nesterov=True,
    )
    truth = torch.cat([torch.zeros(n), torch.ones(n)]).cuda()
    for i in range(total):
        strength = 2 / (1 + math.exp(-10 * i / total)) - 1
        (source, label), (target, _) = sample(n, 0.0), sample(n, 0.3)
        crop, domain = model(torch.cat([source, target]).cuda(), strength)
        supervised = F.cross_entropy(crop[:n], label.cuda())
        adversarial = F.binary_cross_entropy_with_logits(domain, truth)
        p = crop[n:].softmax(1)
        entropy = -(p * (p + 1e-8).log()).sum(1).mean()
        loss = supervised + adversarial + 0.1 * entropy
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(i, f"{supervised.item():.3f} {adversarial.item():.3f}")


if __name__ == "__main__":
    main()
