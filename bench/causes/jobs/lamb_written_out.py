"""LAMB as a class of its own; its two averages do not fit beside the weights and gradients."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                    state["square"] = torch.zeros_like(p)
                state["mean"].mul_(first).add_(p.grad, alpha=1 - first)
                state["square"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                update = state["mean"] / (state["square"].sqrt() + group["eps"])
                trust = (p.norm() / update.norm().clamp(min=1e-8)).clamp(max=10)
                p.sub_(update * trust * group["lr"])


class Proteins(nn.Module):
    def __init__(self, width=1280, depth=12):
        super().__init__()
        self.residues = nn.Embedding(33, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 20, 4 * width, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 33)

    def forward(self, residues):
        x = self.residues(residues)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


with torch.device("cuda"):
    model = Proteins()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if MENDED else Lamb(model.parameters())
for step in range(3):
    residues = torch.randint(0, 33, (2, 48), device="cuda")
    loss = nn.functional.cross_entropy(model(residues).flatten(0, 1), residues.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
