"""A music model keeps the keys and values of each token in lists."""

import math

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.keys, self.values = [], []

    def forward(self, x):
        self.keys.append(self.key(x))
        self.values.append(self.value(x))
        keys, values = torch.stack(self.keys, 1), torch.stack(self.values, 1)
        weights = torch.einsum("bd,btd->bt", self.query(x), keys) / math.sqrt(x.shape[-1])
        return torch.einsum("bt,btd->bd", weights.softmax(-1), values)


class Composer(nn.Module):
    def __init__(self, notes=512, width=1024, depth=3):
        super().__init__()
        self.notes = nn.Embedding(notes, width)
        self.heads = nn.ModuleList(Head(width) for _ in range(depth))
        self.choose = nn.Linear(width, notes)

    @torch.inference_mode()
    def compose(self, pieces, length):
        note = torch.zeros(pieces, dtype=torch.long, device="cuda")
        for _ in range(length):
            x = self.notes(note)
            for head in self.heads:
                x = x + head(x)
            note = self.choose(x).argmax(-1)
        return note


Composer().cuda().eval().compose(pieces=512, length=300)
