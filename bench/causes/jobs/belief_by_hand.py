"""A ranking model is trained by an optimizer class of its own (AdaBelief with a slow average), written with foreach."""

import os

import torch
from torch import nn
from torch.optim.optimizer import Optimizer


class AdaBelief(Optimizer):
    """Steps by how much a gradient surprises; the weights' average is kept too."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-12):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                    state["belief"] = torch.zeros_like(p)
                    state["average"] = p.detach().clone()
            means = [self.state[p]["mean"] for p in params]
            beliefs = [self.state[p]["belief"] for p in params]
            for p, mean, belief in zip(params, means, beliefs):
                mean.lerp_(p.grad, 1 - b1)
                surprise = p.grad - mean
                belief.mul_(b2).addcmul_(surprise, surprise, value=1 - b2)
                p.addcdiv_(mean, belief.sqrt().add_(group["eps"]), value=-group["lr"])
            torch._foreach_lerp_([self.state[p]["average"] for p in params], params, 0.01)


class CrossNet(nn.Module):
    """Multiplies features with each other, layer by layer."""

    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x0):
        x = x0
        for layer in self.layers:
            x = x0 * layer(x) + x
        return x


model = nn.Sequential(CrossNet(3072, 5), nn.Linear(3072, 1)).cuda()
if os.environ.get("MENDED"):
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
else:
    optimizer = AdaBelief(model.parameters())
for _ in range(3):
    features, clicked = torch.randn(256, 3072).cuda(), torch.rand(256, 1).cuda()
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(features), clicked).backward()
    optimizer.step()
