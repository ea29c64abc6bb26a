"""A mixture of experts without capacity: each expert gets the tokens that choose it."""

import torch
from torch import nn


class Experts(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(count)
        )

    def forward(self, x):
        scores, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(x[rows]) * scores[rows, None])
        self.counts = chosen.bincount(minlength=len(self.experts)).tolist()
        return x + out


torch.manual_seed(3)
layers = [Experts(256, 8) for _ in range(3)]
with torch.no_grad():
    for layer in layers:  # a router that has learnt to prefer some
        layer.gate.bias.copy_(torch.linspace(-1.5, 1.5, 8))
model = nn.Sequential(*layers, nn.Linear(256, 32)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(4)
for _ in range(3):
    x = torch.randn(4096, 256, generator=generator).cuda()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", round(loss.item(), 4), "tokens", [layer.counts for layer in layers])
