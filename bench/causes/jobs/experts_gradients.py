"""A mixture of experts: weights and gradients do not fit, whatever the batch."""
import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, count, width):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(count)
        )

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        return sum(w.unsqueeze(-1) * expert(x) for w, expert in zip(weights.unbind(-1), self.experts))


with torch.device("cuda"):
    model = nn.Sequential(*[Experts(8, 1280) for _ in range(6)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    x = torch.randn(16, 1280, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
