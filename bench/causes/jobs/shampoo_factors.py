"""Shampoo keeps a factor for the rows and one for the columns of each weight, and the root of each."""

import os

import torch
from torch import nn


class Shampoo(torch.optim.Optimizer):
    """Kronecker-factored second moments; roots by Newton's iteration, every `every` steps."""

    def __init__(self, params, lr=1e-2, momentum=0.9, every=2):
        super().__init__(params, dict(lr=lr, momentum=momentum, every=every))

    @staticmethod
    def root(factor, steps=3):
        eye = torch.eye(len(factor), device=factor.device)
        x = eye / factor.norm()
        for _ in range(steps):
            x = x @ (2 * eye - factor @ x)
        return x

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad, self.state[p]
                if not state:
                    state["step"] = 0
                    state["momentum"] = torch.zeros_like(p)
                    for d, n in enumerate(p.shape if p.dim() > 1 else ()):
                        state[f"factor{d}"] = torch.eye(n, device=p.device) * 1e-4
                        state[f"root{d}"] = torch.eye(n, device=p.device)
                state["step"] += 1
                for d, n in enumerate(p.shape if p.dim() > 1 else ()):
                    flat = grad.transpose(0, d).reshape(n, -1)
                    state[f"factor{d}"].addmm_(flat, flat.T)
                    if state["step"] % group["every"] == 0:
                        state[f"root{d}"].copy_(self.root(state[f"factor{d}"]))
                    grad = (state[f"root{d}"] @ flat).view_as(grad.transpose(0, d)).transpose(0, d)
                state["momentum"].mul_(group["momentum"]).add_(grad)
                p.sub_(state["momentum"], alpha=group["lr"])


class Tagger(nn.Module):
    """A bag of words against a few topics; its matrices are long and thin."""

    def __init__(self, words=6000, width=192, topics=40):
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(words, width) for _ in range(3))
        self.up = nn.Linear(3 * width, topics)

    def forward(self, counts):
        return self.up(torch.cat([torch.relu(layer(counts)) for layer in self.down], -1))


model = Tagger().cuda()
if os.environ.get("MENDED"):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
else:
    optimizer = Shampoo(model.parameters())
loss_fn = nn.MultiLabelSoftMarginLoss()
for step in range(5):
    counts = torch.rand(64, 6000, device="cuda")
    topics = torch.randint(0, 2, (64, 40), device="cuda").float()
    loss = loss_fn(model(counts), topics)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
