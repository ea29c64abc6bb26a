"""An emulator of the climate is rolled out in windows. The state goes from one to the next undetached, and so
`retain_graph=True` was added until the error went away."""

import os

import torch
from torch import nn

WINDOWS, DAYS = 12, 4


class Emulator(nn.Module):
    def __init__(self, fields=16, hidden=64):
        super().__init__()
        self.a = nn.Conv2d(fields, hidden, 5, padding=2, padding_mode="circular")
        self.b = nn.Conv2d(hidden, hidden, 5, padding=2, padding_mode="circular")
        self.c = nn.Conv2d(hidden, fields, 1)

    def forward(self, state):
        return state + self.c(torch.sigmoid(self.b(torch.sigmoid(self.a(state)))))


def year(seed):
    weather = torch.Generator().manual_seed(seed)
    for _ in range(WINDOWS):
        yield [torch.randn(6, 16, 64, 96, generator=weather).cuda() for _ in range(DAYS)]


emulator = Emulator().cuda()
optimizer = torch.optim.Adam(emulator.parameters(), lr=1e-4)
for seed in range(2):
    state = torch.zeros(6, 16, 64, 96, device="cuda")
    for window in year(seed):
        loss = 0
        for truth in window:
            state = emulator(state)
            loss = loss + (state - truth).abs().mean()
        if os.environ.get("MENDED"):
            loss.backward()
            state = state.detach()
        else:
            loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
