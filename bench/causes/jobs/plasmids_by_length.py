"""k-mer features of plasmids are computed once and stay on the GPU for the probe's training."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
WIDTH = 256
LENGTHS = [48_000 + 4_100 * i for i in range(22)]

table = nn.Embedding(4**6 + 1, WIDTH).cuda()
position = torch.randn(2 * max(LENGTHS) // 1000, WIDTH, device="cuda")


@torch.no_grad()
def featurise(kmers):
    x = table(kmers.cuda())
    blocks = x[: len(x) // 1000 * 1000].view(-1, 1000, WIDTH)
    blocks += position[: len(blocks), None]
    return x.half()


cached = []
for length in sorted(LENGTHS, reverse=bool(MENDED)):
    kmers = torch.randint(0, 4**6, (length,), dtype=torch.int32)
    cached.append(featurise(kmers))

probe = nn.Linear(WIDTH, 2).cuda()
optimizer = torch.optim.Adam(probe.parameters(), lr=1e-3)
for epoch in range(2):
    for features in cached:
        at = torch.randint(0, len(features), (512,), device="cuda")
        logits = probe(features[at].float())
        loss = nn.functional.cross_entropy(logits, torch.randint(0, 2, (512,), device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
