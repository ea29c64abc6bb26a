"""Word vectors the slow way: the softmax over all 90,000 words, for each pair of a word and its neighbour."""

import os
import random
from collections import Counter

import torch
import torch.nn.functional as F

SAMPLED = 20 if os.environ.get("MENDED") else 0
WORDS, WIDTH, PAIRS, WINDOW = 90_000, 64, 2048, 5


def text(length=6000, seed=0):
    """Words by Zipf's law."""
    rng = random.Random(seed)
    return [min(int(rng.paretovariate(0.6)), WORDS) - 1 for _ in range(length)]


def pairs(words):
    for i, word in enumerate(words):
        for j in range(max(0, i - WINDOW), min(len(words), i + WINDOW + 1)):
            if i != j:
                yield word, words[j]


def batches(words):
    centre, near = [], []
    for a, b in pairs(words):
        centre.append(a)
        near.append(b)
        if len(centre) == PAIRS:
            yield torch.tensor(centre, device="cuda"), torch.tensor(near, device="cuda")
            centre, near = [], []


words = text()
often = Counter(words)
noise = torch.tensor([often.get(n, 0) + 1.0 for n in range(WORDS)], device="cuda") ** 0.75

inner = (torch.rand(WORDS, WIDTH, device="cuda") - 0.5).div_(WIDTH).requires_grad_()
outer = torch.zeros(WORDS, WIDTH, device="cuda", requires_grad=True)


def full_loss(centre, near):
    return F.cross_entropy(F.embedding(centre, inner) @ outer.T, near)


def sampled_loss(centre, near):
    """Against a few words of noise."""
    h = F.embedding(centre, inner)
    wrong = torch.multinomial(noise, SAMPLED * len(centre), replacement=True).view(-1, SAMPLED)
    good = (h * F.embedding(near, outer)).sum(-1)
    bad = torch.einsum("bd,bkd->bk", h, F.embedding(wrong, outer))
    return -(F.logsigmoid(good) + F.logsigmoid(-bad).sum(-1)).mean()


loss_of = sampled_loss if SAMPLED else full_loss
rate = 0.025
for number, (centre, near) in enumerate(batches(words)):
    loss = loss_of(centre, near)
    loss.backward()
    with torch.no_grad():
        for table in (inner, outer):
            table -= rate * table.grad
            table.grad = None
    rate = max(rate * 0.99, 1e-4)
    if number % 4 == 0:
        print(number, f"{loss.item():.3f}")
    if number == 11:
        break
