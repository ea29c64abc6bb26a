"""Jets of particles as a density: masked autoregressive layers with batch norm between, a mixture as base, conditions on energy, float32, Adam, no pictures."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class MaskedLinear(nn.Linear):
    def __init__(self, mask):
        super().__init__(mask.shape[1], mask.shape[0])
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


class MADE(nn.Module):
    def __init__(self, dims, context, hidden, depth=2):
        super().__init__()
        degree_in = torch.arange(dims)
        degree_h = torch.arange(hidden) % (dims - 1)
        self.first = MaskedLinear((degree_h[:, None] >= degree_in).float())
        self.context = nn.Linear(context, hidden, bias=False)
        self.middle = nn.ModuleList(
            MaskedLinear((degree_h[:, None] >= degree_h).float()) for _ in range(depth - 1)
        )
        self.last = MaskedLinear((degree_in.repeat(2)[:, None] > degree_h).float())

    def forward(self, x, c):
        h = torch.tanh(self.first(x) + self.context(c))
        for layer in self.middle:
            h = h + torch.tanh(layer(h))
        mu, alpha = self.last(h).chunk(2, 1)
        alpha = 2 * torch.tanh(alpha / 2)
        return (x - mu) * torch.exp(-alpha), -alpha.sum(1)


class FlowBatchNorm(nn.Module):
    def __init__(self, dims, momentum=0.05):
        super().__init__()
        self.log_gamma, self.beta = nn.Parameter(torch.zeros(dims)), nn.Parameter(torch.zeros(dims))
        self.register_buffer("mean", torch.zeros(dims))
        self.register_buffer("var", torch.ones(dims))
        self.momentum = momentum

    def forward(self, x, c):
        if self.training:
            mean, var = x.mean(0), x.var(0) + 1e-5
            self.mean.lerp_(mean.detach(), self.momentum)
            self.var.lerp_(var.detach(), self.momentum)
        else:
            mean, var = self.mean, self.var
        y = self.log_gamma.exp() * (x - mean) * var.rsqrt() + self.beta
        return y, (self.log_gamma - 0.5 * var.log()).sum().expand(len(x))


class Reverse(nn.Module):
    def forward(self, x, c):
        return x.flip(1), x.new_zeros(len(x))


class Jets(nn.Module):
    def __init__(self, dims=90, context=6, hidden=768, layers=6, modes=8):
        super().__init__()
        self.steps = nn.ModuleList()
        for _ in range(layers):
            self.steps += [MADE(dims, context, hidden), FlowBatchNorm(dims), Reverse()]
        self.modes = nn.Parameter(torch.randn(modes, dims))
        self.weight = nn.Parameter(torch.zeros(modes))

    def log_prob(self, x, c):
        logdet = 0
        for f in self.steps:
            x, ld = f(x, c)
            logdet = logdet + ld
        d2 = (x[:, None] - self.modes).square().sum(2)
        base = torch.logsumexp(self.weight.log_softmax(0) - 0.5 * d2, 1)
        return base - 0.5 * x.shape[1] * math.log(2 * math.pi) + logdet


flow = Jets().cuda()
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-4, weight_decay=1e-6)
jets = torch.randn(400_000, 90)  # thirty particles: pt, eta, phi
energy = torch.rand(400_000, 6)
flow.train()
for step in range(5):
    pick = torch.randint(0, len(jets), (40_000,))
    x, c = jets[pick].cuda(), energy[pick].cuda()
    x = x + 1e-3 * torch.randn_like(x)
    nll = -flow.log_prob(x, c).mean()
    optimizer.zero_grad()
    nll.backward()
    nn.utils.clip_grad_norm_(flow.parameters(), 2.0)
    optimizer.step()
    print(step, f"{nll.item():.3f} nats")
