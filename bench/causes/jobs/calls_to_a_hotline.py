"""How urgent is a call? A temporal network over mel frames, calls padded within the batch."""

import os
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

MENDED = os.environ.get("MENDED")
random.seed(11)

# seconds, as the switchboard wrote them down
calls = [random.randint(40, 210) for _ in range(6 * 11)]
calls[41] = 3405
FRAMES_PER_SECOND = 25


def mel(seconds):
    if MENDED:
        seconds = min(seconds, 240)
    return torch.randn(seconds * FRAMES_PER_SECOND, 64)


class TCN(nn.Module):
    def __init__(self, width=128, depth=8):
        super().__init__()
        self.stem = nn.Conv1d(64, width, 1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, width, 3, padding=2**i, dilation=2**i), nn.ELU(), nn.Dropout(0.1)
            )
            for i in range(depth)
        )
        self.head = nn.Linear(width, 4)

    def forward(self, x, lengths):
        x = self.stem(x.transpose(1, 2))
        for layer in self.layers:
            x = x + layer(x)
        mask = torch.arange(x.shape[-1], device=x.device)[None] < lengths[:, None]
        pooled = (x * mask[:, None]).sum(-1) / lengths[:, None]
        return self.head(pooled)


model = TCN().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
for i in range(0, len(calls), 6):
    batch = [mel(s) for s in calls[i : i + 6]]
    lengths = torch.tensor([len(b) for b in batch]).cuda()
    x = pad_sequence(batch, batch_first=True).cuda()
    urgency = torch.randint(0, 4, (len(batch),)).cuda()
    optimizer.zero_grad()
    loss = criterion(model(x, lengths), urgency)
    loss.backward()
    optimizer.step()
