"""nn.Transformer trained by Rprop, which holds two values per weight; plain SGD would fit."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class Translator(nn.Module):
    def __init__(self, words=9000, width=1024):
        super().__init__()
        self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
        self.body = nn.Transformer(width, 16, 5, 5, 4096, batch_first=True)
        self.words = nn.Linear(width, words)

    def forward(self, a, b):
        return self.words(self.body(self.source(a), self.target(b)))


translator = Translator().cuda()
if MENDED:
    optimizer = torch.optim.SGD(translator.parameters(), lr=1e-3)
else:
    optimizer = torch.optim.Rprop(translator.parameters(), lr=1e-3)
for _ in range(3):
    source = torch.randint(9000, (2, 24), device="cuda")
    target = torch.randint(9000, (2, 21), device="cuda")
    scores = translator(source, target[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), target[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
