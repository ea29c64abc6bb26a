"""A service turns texts into vectors, as many at once as requests waited. All are padded to the longest; today somebody sent their archive of mails as one text."""

import os

import torch
import torch.nn.functional as F
from torch import nn

LONGEST = 512 if os.environ.get("MENDED") else None


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.feed = nn.Sequential(
            nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)
        )

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.feed(x)


class TextEncoder(nn.Module):
    def __init__(self, words=16000, d=512, layers=8):
        super().__init__()
        self.words = nn.Embedding(words, d, padding_idx=0)
        self.blocks = nn.Sequential(*(Block(d, 8) for _ in range(layers)))

    def forward(self, ids):
        real = ids.ne(0).unsqueeze(2)
        h = self.blocks(self.words(ids)) * real
        return F.normalize(h.sum(1) / real.sum(1).clamp(1), dim=1)


class Service:
    """Takes whatever is in the queue."""

    def __init__(self):
        self.model = TextEncoder().half().cuda().eval()
        self.answered = 0

    def tokens(self, text):
        return torch.randint(1, 16000, (text,))[:LONGEST]

    @torch.inference_mode()
    def answer(self, waiting):
        ids = nn.utils.rnn.pad_sequence([self.tokens(t) for t in waiting], batch_first=True)
        vectors = self.model(ids.cuda()).float().cpu()
        self.answered += len(waiting)
        return vectors


def traffic():
    """How many words the texts of each moment have."""
    g = torch.Generator().manual_seed(8)
    for moment in range(14):
        lengths = torch.randint(20, 400, (24,), generator=g).tolist()
        if moment == 10:
            lengths[5] = 24_000
        yield lengths


service = Service()
for waiting in traffic():
    print(service.answer(waiting).shape, service.answered)
