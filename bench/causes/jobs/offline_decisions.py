"""Games that others played teach a transformer what to do next: returns, states and actions of 512 moments, with scores masked by hand."""

import math
import os
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

FAST = bool(os.environ.get("MENDED"))


class Window(NamedTuple):
    returns: torch.Tensor
    states: torch.Tensor
    actions: torch.Tensor
    moments: torch.Tensor


class CausalSelfAttention(nn.Module):
    def __init__(self, d, heads, length, drop):
        super().__init__()
        self.heads, self.drop = heads, drop
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer("mask", torch.ones(length, length).tril().bool(), persistent=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if FAST:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
            att = att.masked_fill(~self.mask[:t, :t], float("-inf"))
            y = F.dropout(att.softmax(-1), self.drop) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d, heads, length, drop=0.1):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = CausalSelfAttention(d, heads, length, drop)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class DecisionTransformer(nn.Module):
    def __init__(self, observed=17, acted=6, context=512, d=128, heads=4, layers=3):
        super().__init__()
        self.moment = nn.Embedding(1000, d)
        self.see, self.do, self.hope = nn.Linear(observed, d), nn.Linear(acted, d), nn.Linear(1, d)
        self.norm = nn.LayerNorm(d)
        self.blocks = nn.Sequential(*(Block(d, heads, 3 * context) for _ in range(layers)))
        self.act = nn.Sequential(nn.Linear(d, acted), nn.Tanh())

    def forward(self, w):
        at = self.moment(w.moments)
        parts = [self.hope(w.returns) + at, self.see(w.states) + at, self.do(w.actions) + at]
        tokens = torch.stack(parts, 2).flatten(1, 2)
        return self.act(self.blocks(self.norm(tokens))[:, 1::3])


def windows(rng, games=10, batch=4, context=512):
    """Windows of games of a walker who was not very good."""
    games = [(rng.normal(size=(1000, 17)), rng.uniform(-1, 1, (1000, 6)), rng.normal(size=1000)) for _ in range(games)]  # fmt: skip
    while True:
        rows = []
        for game in rng.integers(len(games), size=batch):
            states, actions, rewards = games[game]
            start = int(rng.integers(1000 - context))
            part = slice(start, start + context)
            hoped = rewards[::-1].cumsum()[::-1][part, None] / 1000
            rows.append((hoped, states[part], actions[part], np.arange(start, start + context)))
        kinds = (np.float32, np.float32, np.float32, np.int64)
        yield Window(
            *(torch.from_numpy(np.stack(c).astype(k)).cuda() for c, k in zip(zip(*rows), kinds))
        )


model = DecisionTransformer().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 1000, 1))
for step, window in zip(range(3), windows(np.random.default_rng(0))):
    loss = F.mse_loss(model(window), window.actions)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    warm.step()
    print(step, loss.item())
