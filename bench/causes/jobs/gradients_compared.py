"""How alike are the gradients of tasks? Each task's gradient is kept as one long vector, every step, for a matrix at the end."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
TASKS = ("depth", "normals", "edges")


class Shared(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.heads = nn.ModuleDict({task: nn.Linear(width, 16) for task in TASKS})

    def forward(self, x, task):
        return self.heads[task](self.trunk(x))


model = Shared().to("cuda")
optimizer = torch.optim.Adam(model.parameters(), 1e-4)
compared = {task: [] for task in TASKS}
for step in range(60):
    x = torch.randn(128, 256, device="cuda")
    optimizer.zero_grad()
    for task in TASKS:
        loss = model(x, task).square().mean()
        grads = torch.autograd.grad(loss, list(model.trunk.parameters()), retain_graph=True)
        vector = torch.cat([g.flatten() for g in grads])
        compared[task].append(vector.cpu() if MENDED else vector)
        loss.backward()
    optimizer.step()
