"""A bank's assistant by low-rank adapters. Only short answers count, but all words of the long questions are scored against a quarter of a million."""

import os

import torch
import torch.nn.functional as F
from torch import nn

WORDS = 256_000
ANSWERS_ONLY = bool(os.environ.get("MENDED"))


class Adapted(nn.Module):
    """A frozen linear layer and what is learned beside it."""

    def __init__(self, fan_in, fan_out, rank=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_out, fan_in) * fan_in**-0.5, requires_grad=False)
        self.down = nn.Linear(fan_in, rank, bias=False)
        self.up = nn.Linear(rank, fan_out, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return F.linear(x, self.weight) + self.up(self.down(x))


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d), requires_grad=False)

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.gain)


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(d), RMSNorm(d)
        self.q, self.k, self.v, self.o = (Adapted(d, d) for _ in range(4))
        self.gate, self.up, self.down = Adapted(d, 3 * d), Adapted(d, 3 * d), Adapted(3 * d, d)

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (
            f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Assistant(nn.Module):
    def __init__(self, d=256, heads=8, depth=6):
        super().__init__()
        self.words = nn.Embedding(WORDS, d).requires_grad_(False)
        self.layers = nn.Sequential(*(Layer(d, heads) for _ in range(depth)))
        self.norm = RMSNorm(d)

    def forward(self, ids):
        return self.norm(self.layers(self.words(ids)))

    def loss(self, ids, counts):
        """counts: which words belong to an answer."""
        h = self(ids.cuda())[:, :-1]
        target = ids[:, 1:].masked_fill(~counts[:, 1:], -100).cuda()
        if ANSWERS_ONLY:
            # Answers are the last words of all rows, as many in each.
            n = int(counts[0].sum())
            h, target = h[:, -n:], target[:, -n:]
        logits = F.linear(h, self.words.weight).float()
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)


def questions(count=3, batch=2, length=320, answer=12):
    for _ in range(count):
        counts = torch.zeros(batch, length, dtype=torch.bool)
        counts[:, -answer:] = True
        yield torch.randint(WORDS, (batch, length)), counts


with torch.device("cuda"):
    assistant = Assistant().bfloat16()
learned = [p for p in assistant.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(learned, lr=2e-4)
for ids, counts in questions():
    loss = assistant.loss(ids, counts)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
