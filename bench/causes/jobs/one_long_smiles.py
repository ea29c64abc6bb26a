"""Formulas of molecules as text, padded batch by batch by an iterator. One of them is a polymer."""

import os
import random

import torch
from torch import nn

random.seed(11)
CAP = 200 if os.environ.get("MENDED") else None


def formulas():
    for n in range(20):
        lengths = [random.randint(30, 110) for _ in range(48)]
        if n == 13:
            lengths[5] = 1500
        yield [torch.randint(1, 60, (length,))[:CAP] for length in lengths]


class Encoder(nn.TransformerEncoder):
    def __init__(self, width=192, depth=5):
        layer = nn.TransformerEncoderLayer(
            width, 6, 4 * width, 0.0, batch_first=True, norm_first=True
        )
        super().__init__(layer, depth, enable_nested_tensor=False)
        self.letters, self.out = nn.Embedding(60, width, padding_idx=0), nn.Linear(width, 60)

    def score(self, ids):
        return self.out(self(self.letters(ids)))


encoder = Encoder().cuda()
optimizer = torch.optim.SGD(encoder.parameters(), 0.01)
for batch in formulas():
    ids = nn.utils.rnn.pad_sequence(batch, batch_first=True).cuda()
    loss = nn.functional.cross_entropy(encoder.score(ids).mT, ids, ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
