"""Accumulation by hand: the losses of sixteen small batches are added up, then there is one backward for all."""

import os

import torch
from accelerate import Accelerator
from torch import nn

MENDED = os.environ.get("MENDED")
ACCUMULATE = 16


class Piano(nn.Module):
    """Which keys sound in each moment of a spectrogram."""

    def __init__(self, bins=229, width=48):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d((1, 2)), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d((1, 2)),
        )  # fmt: skip
        self.fc = nn.Linear(2 * width * (bins // 4), 256)
        self.keys = nn.Linear(256, 88)

    def forward(self, spec):
        h = self.conv(spec.unsqueeze(1)).transpose(1, 2).flatten(2)
        return self.keys(self.fc(h).relu())


accelerator = Accelerator()
model = Piano()
optimizer = torch.optim.Adam(model.parameters(), lr=6e-4)
model, optimizer = accelerator.prepare(model, optimizer)
criterion = nn.BCEWithLogitsLoss()

for step in range(2):
    total = torch.zeros((), device=accelerator.device)
    for _ in range(ACCUMULATE):
        spec = torch.randn(2, 240, 229, device=accelerator.device)
        keys = torch.randint(0, 2, (2, 240, 88), device=accelerator.device).float()
        loss = criterion(model(spec), keys) / ACCUMULATE
        if MENDED:
            accelerator.backward(loss)
            total += loss.detach()
        else:
            total = total + loss
    if not MENDED:
        accelerator.backward(total)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(step, total.item())
