"""A puzzle is solved by a tree of thoughts. Every thought has keys and values of all that led to it, as a copy of its own."""

import heapq
import itertools
import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")
KIND = dict(device="cuda", dtype=torch.bfloat16)


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(d, **KIND), nn.RMSNorm(d, **KIND)
        self.qkv, self.out = nn.Linear(d, 3 * d, **KIND), nn.Linear(d, d, **KIND)
        self.up, self.down = nn.Linear(d, 3 * d, **KIND), nn.Linear(3 * d, d, **KIND)

    def forward(self, x, past):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        seen = torch.ones(n, k.shape[2], dtype=torch.bool, device=x.device).tril(k.shape[2] - n)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.silu(self.up(self.norm2(x)))), (k, v)


class Thinker(nn.Module):
    def __init__(self, words=4000, d=1024, heads=16, depth=8):
        super().__init__()
        self.embed = nn.Embedding(words, d, **KIND)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(depth))
        self.value = nn.Linear(d, 1, **KIND)

    def forward(self, ids, cache=None):
        x, new = self.embed(ids), []
        for n, layer in enumerate(self.layers):
            x, kv = layer(x, cache[n] if cache else None)
            new.append(kv)
        return self.value(x[:, -1]).float(), new


class Thought:
    numbers = itertools.count()

    def __init__(self, ids, parent=None, cache=None):
        self.ids, self.parent, self.cache = ids, parent, cache
        self.number, self.value = next(Thought.numbers), 0.0

    def __lt__(self, other):
        return (-self.value, self.number) < (-other.value, other.number)

    def path(self):
        """All words from the question on."""
        return self.ids if self.parent is None else torch.cat([self.parent.path(), self.ids], 1)


class Search:
    def __init__(self, thinker, width=3, words=24, seed=0):
        self.thinker, self.width, self.words = thinker, width, words
        self.generator = torch.Generator().manual_seed(seed)
        self.thoughts = []

    def think(self, ids, parent=None):
        """A thought and what it is worth."""
        thought = Thought(ids, parent)
        if MENDED:
            # Keys and values are cheap to make again, and few thoughts are opened.
            value, _ = self.thinker(thought.path().cuda())
        else:
            value, thought.cache = self.thinker(ids.cuda(), parent.cache if parent else None)
        thought.value = value.item()
        self.thoughts.append(thought)
        return thought

    @torch.inference_mode()
    def solve(self, question, opened=26):
        frontier = [self.think(question)]
        for _ in range(opened):
            best = heapq.heappop(frontier)
            for _ in range(self.width):
                ids = torch.randint(4000, (1, self.words), generator=self.generator)
                heapq.heappush(frontier, self.think(ids, best))
        return max(self.thoughts, key=lambda thought: thought.value)


search = Search(Thinker().eval())
best = search.solve(torch.randint(4000, (1, 400)))
print(len(search.thoughts), "thoughts; the best has", best.path().shape[1], "words")
