"""Blurred pictures are restored by guided diffusion. Each step differentiates through the network, keeps that graph,
and hands it on to the next."""

import os

import torch
from torch import nn

STEPS = 40


class Net(nn.Module):
    def __init__(self, c=48):
        super().__init__()
        self.into = nn.Conv2d(4, c, 3, padding=1)
        self.mid = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(4))
        self.out = nn.Conv2d(c, 3, 3, padding=1)

    def forward(self, x, t):
        time = torch.full_like(x[:, :1], t)
        x = self.into(torch.cat([x, time], 1))
        for conv in self.mid:
            x = x + conv(nn.functional.silu(x))
        return self.out(x)


def blur(x):
    return nn.functional.avg_pool2d(x, 9, 1, 4)


def restore(net, measured, alphas):
    x = torch.randn_like(measured).requires_grad_()
    for n in range(STEPS - 1, 0, -1):
        now, then = alphas[n], alphas[n - 1]
        noise = net(x, n / STEPS)
        clean = (x - (1 - now) ** 0.5 * noise) / now**0.5
        miss = (blur(clean) - measured).square().sum().sqrt()
        if os.environ.get("MENDED"):
            (pull,) = torch.autograd.grad(miss, x)
        else:
            (pull,) = torch.autograd.grad(miss, x, retain_graph=True)
        x = then**0.5 * clean + (1 - then) ** 0.5 * noise - 0.5 * pull
        if os.environ.get("MENDED"):
            x = x.detach().requires_grad_()
    return x.detach()


net = Net().cuda().requires_grad_(False)
alphas = torch.linspace(0.999, 0.01, STEPS).tolist()
print(restore(net, torch.rand(2, 3, 128, 128, device="cuda"), alphas).shape)
