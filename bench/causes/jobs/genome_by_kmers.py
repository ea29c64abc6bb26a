"""A gated convolutional model of masked genomes scores every position against all words of eight bases."""

import os

import torch
import torch.nn.functional as F
from torch import nn

KMERS = 4**8 + 3
MASK = KMERS - 1
HIDDEN_PER_READ = 96


class Gated(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.conv = nn.Conv1d(width, 2 * width, 5, padding=2 * dilation, dilation=dilation)

    def forward(self, x):
        return x + F.glu(self.conv(self.norm(x).transpose(1, 2)), 1).transpose(1, 2)


class Genome(nn.Module):
    def __init__(self, width=256, depth=5):
        super().__init__()
        self.words = nn.Embedding(KMERS, width)
        self.body = nn.Sequential(*(Gated(width, 2**n) for n in range(depth)))
        self.scores = nn.Linear(width, KMERS)

    def forward(self, reads, places):
        x = self.body(self.words(reads))
        if os.environ.get("MENDED"):
            x = x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))
        return self.scores(x)


def masked(batch=8, length=1024):
    reads = torch.randint(0, KMERS - 1, (batch, length), device="cuda")
    places = torch.rand(batch, length, device="cuda").topk(HIDDEN_PER_READ, 1).indices
    labels = torch.full_like(reads, -100).scatter(1, places, reads.gather(1, places))
    return reads.scatter(1, places, MASK), places, labels


genome = Genome().cuda()
optimizer = torch.optim.Adam(genome.parameters(), lr=3e-4)
for _ in range(3):
    reads, places, labels = masked()
    scores = genome(reads, places)
    wanted = labels.gather(1, places) if os.environ.get("MENDED") else labels
    loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=-100)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
