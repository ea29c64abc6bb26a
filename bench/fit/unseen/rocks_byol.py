"""BYOL on photographs of rocks: ResNet-50 from torchvision, two views, momentum target, own LARS."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-6, eta=1e-3):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, eta=eta))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                d = p.grad
                if p.ndim > 1:
                    d = d.add(p, alpha=group["weight_decay"])
                    pn, un = p.norm(), d.norm()
                    q = torch.where(
                        (pn > 0) & (un > 0), group["eta"] * pn / un, torch.ones_like(pn)
                    )
                    d = d * q
                state = self.state[p]
                if "mu" not in state:
                    state["mu"] = torch.zeros_like(p)
                state["mu"].mul_(group["momentum"]).add_(d)
                p.add_(state["mu"], alpha=-group["lr"])


def mlp(i, hidden=4096, o=256):
    return nn.Sequential(
        nn.Linear(i, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, o)
    )


class BYOL(nn.Module):
    def __init__(self):
        super().__init__()
        backbone = torchvision.models.resnet50()
        backbone.fc = nn.Identity()
        self.online = nn.Sequential(backbone, mlp(2048))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.predictor = mlp(256)

    def forward(self, a, b):
        pa, pb = self.predictor(self.online(a)), self.predictor(self.online(b))
        with torch.no_grad():
            ta, tb = self.target(a), self.target(b)
        return (2 - 2 * F.cosine_similarity(pa, tb)).mean() + (
            2 - 2 * F.cosine_similarity(pb, ta)
        ).mean()

    @torch.no_grad()
    def momentum(self, tau):
        for o, t in zip(self.online.parameters(), self.target.parameters()):
            t.mul_(tau).add_(o, alpha=1 - tau)


def views(n, size):
    x = torch.rand(n, 3, size, size)
    return x + 0.1 * torch.randn_like(x), x.flip(-1) + 0.1 * torch.randn_like(x)


def main(steps=7, n=40, size=160):
    model = BYOL().cuda()
    opt = LARS([p for p in model.parameters() if p.requires_grad], lr=0.3)
    for k in range(steps):
        a, b = (v.cuda(non_blocking=True) for v in views(n, size))
        loss = model(a, b)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        model.momentum(1 - 0.004 * (math.cos(math.pi * k / steps) + 1) / 2)
        print(f"{k} {loss.item():.4f}")


if __name__ == "__main__":
    main()
