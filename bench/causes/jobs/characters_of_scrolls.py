"""Old handwriting, column by column, by CTC. Each of 24,000 characters is a class; their 600 components would do."""

import os

import torch
from torch import nn

# A character is spelled by its components if MENDED: three times as many symbols, far fewer classes.
CLASSES, SPELLED = (600, 3) if os.environ.get("MENDED") else (24_000, 1)


class Conv(nn.Sequential):
    def __init__(self, fan_in, fan_out, pool=None):
        super().__init__(
            nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(fan_out),
            nn.ReLU(inplace=True),
            *([nn.MaxPool2d(pool)] if pool else []),
        )


class Reader(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.see = nn.Sequential(
            Conv(1, 16, 2), Conv(16, 32, 2), Conv(32, 64, (2, 1)), Conv(64, 128, (4, 1))
        )
        self.along = nn.Sequential(
            nn.Conv1d(128, 256, 5, padding=2),
            nn.GELU(),
            nn.Conv1d(256, 256, 5, padding=2),
            nn.GELU(),
        )
        self.classify = nn.Linear(256, classes + 1)

    def forward(self, column):
        x = self.along(self.see(column).squeeze(2))
        return self.classify(x.permute(2, 0, 1))  # time first, as CTC likes it


def columns(batches, batch=32, length=384):
    g = torch.Generator().manual_seed(1)
    for _ in range(batches):
        ink = torch.rand(batch, 1, 32, length, generator=g)
        sizes = torch.randint(6, 15, (batch,), generator=g) * SPELLED
        yield ink, torch.randint(1, CLASSES + 1, (int(sizes.sum()),), generator=g), sizes


reader = Reader(CLASSES).to("cuda")
ctc = nn.CTCLoss(blank=0, zero_infinity=True)
optimizer = torch.optim.SGD(reader.parameters(), lr=0.02)
for number, (ink, text, sizes) in enumerate(columns(3)):
    scores = reader(ink.to("cuda"))
    frames = torch.full((ink.shape[0],), scores.shape[0], dtype=torch.long)
    loss = ctc(scores.log_softmax(-1), text.to("cuda"), frames, sizes)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(reader.parameters(), 2)
    optimizer.step()
    print(number, loss.item())
