"""Extreme classification: an article belongs to some of half a million topics, and every one of them gets a score."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

TOPICS, WORDS, BATCH = 500_000, 60_000, 256
SAMPLED = 4096 if os.environ.get("MENDED") else None


class XML(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, width, mode="mean")
        self.hidden = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.2))
        self.topics = nn.Parameter(torch.randn(TOPICS, width) * 0.02)
        self.bias = nn.Parameter(torch.full((TOPICS,), -9.0))

    def forward(self, words, topics=None):
        h = self.hidden(self.words(words))
        if topics is None:
            return F.linear(h, self.topics, self.bias)
        return F.linear(h, self.topics[topics], self.bias[topics])


def targets(positive, topics=None):
    t = torch.zeros(BATCH, TOPICS if topics is None else len(topics), device="cuda")
    column = positive if topics is None else positive % len(topics)
    return t.scatter_(1, column, 1.0)


model = XML().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for step in range(4):
    words = torch.randint(0, WORDS, (BATCH, 300), device="cuda")
    positive = torch.randint(0, TOPICS, (BATCH, 6), device="cuda")
    some = torch.randint(0, TOPICS, (SAMPLED,), device="cuda") if SAMPLED else None
    scores = model(words, some)
    loss = (
        F.binary_cross_entropy_with_logits(scores, targets(positive, some), reduction="sum") / BATCH
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
