"""Hours of heartbeats through recurrent layers: cuDNN works out the gates of all moments in one piece."""

import os

import torch
from torch import nn

PART = 64 if os.environ.get("MENDED") else 2048


class Beats(nn.Module):
    def __init__(self, leads=12, hidden=160, kinds=7):
        super().__init__()
        self.lstm = nn.LSTM(leads, hidden, batch_first=True)
        self.kinds = nn.Linear(hidden, kinds)

    def forward(self, night):
        state, kinds = None, []
        for part in night.split(PART, 1):
            h, state = self.lstm(part, state)
            kinds.append(self.kinds(h).argmax(-1))
        return torch.cat(kinds, 1)


def nights(count, people=96, moments=2048, leads=12):
    for _ in range(count):
        yield torch.randn(people, moments, leads)


model = Beats().cuda().eval()
with torch.inference_mode():
    for night in nights(3):
        print(model(night.cuda()).shape)
