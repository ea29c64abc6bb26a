"""Taxi fares from hashed trips, trained with AdEMAMix."""

import os

import torch
from torch import nn
from torch.optim import Optimizer

MENDED = os.environ.get("MENDED")


class AdEMAMix(Optimizer):
    """Two momenta, a quick and a slow one, over the second moment (Pagliardini et al.)."""

    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999, 0.9999), alpha=5.0, eps=1e-8, dtype=None
    ):
        super().__init__(params, dict(lr=lr, betas=betas, alpha=alpha, eps=eps))
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2, b3 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    for name in ("quick", "slow", "square"):
                        state[name] = torch.zeros_like(p, dtype=self.dtype)
                state["step"] += 1
                g = p.grad.to(self.dtype) if self.dtype else p.grad
                state["quick"].mul_(b1).add_(g, alpha=1 - b1)
                state["slow"].mul_(b3).add_(g, alpha=1 - b3)
                state["square"].mul_(b2).addcmul_(g, g, value=1 - b2)
                scale = (1 - b2 ** state["step"]) ** 0.5
                denominator = state["square"].sqrt().div_(scale).add_(group["eps"])
                update = state["slow"].mul(group["alpha"]).add_(state["quick"]).div_(denominator)
                p.add_(update, alpha=-group["lr"])


class Fares(nn.Module):
    def __init__(self, cells=150_000, width=64, fields=6):
        super().__init__()
        self.fields = nn.ModuleList(nn.Embedding(cells, width) for _ in range(fields))
        self.mlp = nn.Sequential(
            nn.Linear(fields * width, 1024), nn.ReLU(),
            nn.Linear(1024, 1024), nn.ReLU(),
            nn.Linear(1024, 1),
        )  # fmt: skip

    def forward(self, ids):
        return self.mlp(torch.cat([e(i) for e, i in zip(self.fields, ids.T)], 1)).squeeze(1)


model = Fares().cuda()
optimizer = AdEMAMix(model.parameters(), lr=3e-4, dtype=torch.bfloat16 if MENDED else None)
for step in range(4):
    trips = torch.randint(0, 150_000, (1024, 6), device="cuda")
    fares = torch.rand(1024, device="cuda")
    loss = nn.functional.smooth_l1_loss(model(trips), fares)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
