"""checkpoint_sequential with one part: the last part, here the only one, is never recomputed."""

import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

PARTS = 8 if os.environ.get("MENDED") else 1


class Gated(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm = nn.BatchNorm1d(c)
        self.both = nn.Conv1d(c, 2 * c, 9, padding=4)
        self.mix = nn.Conv1d(c, c, 1)

    def forward(self, x):
        signal, gate = self.both(self.norm(x)).chunk(2, 1)
        return x + self.mix(torch.tanh(signal) * torch.sigmoid(gate))


enter, leave = nn.Conv1d(12, 96, 15, padding=7).cuda(), nn.Linear(96, 9).cuda()
body = nn.Sequential(*[Gated(96) for _ in range(24)]).cuda()
weights = [*enter.parameters(), *body.parameters(), *leave.parameters()]
optimizer = torch.optim.AdamW(weights, lr=1e-3)
for _ in range(3):
    heart = torch.randn(16, 12, 5000, device="cuda")
    x = checkpoint_sequential(body, PARTS, enter(heart), use_reentrant=False)
    loss = nn.functional.cross_entropy(leave(x.mean(-1)), torch.randint(9, (16,), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
