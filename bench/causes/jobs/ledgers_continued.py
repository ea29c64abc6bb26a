"""A small GPT on merchants' ledgers, with the tokenizer of a large one and a z-loss."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

MENDED = os.environ.get("MENDED")
VOCAB = 100_277


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, d=256, layers=4, context=512):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, d), nn.Embedding(context, d)
        self.blocks = nn.Sequential(*[Block(d, 4) for _ in range(layers)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, VOCAB, bias=False)
        self.head.weight = self.tok.weight

    def loss_of(self, h, y):
        scores = self.head(h)
        z = torch.logsumexp(scores, -1)
        return F.cross_entropy(scores, y, reduction="sum") + 1e-4 * z.pow(2).sum()

    def forward(self, ids):
        x, y = ids[:, :-1], ids[:, 1:].flatten()
        at = torch.arange(x.shape[1], device=x.device)
        h = self.norm(self.blocks(self.tok(x) + self.pos(at))).flatten(0, 1)
        if MENDED:
            total = 0.0
            for hs, ys in zip(h.split(256), y.split(256)):
                total = total + checkpoint(self.loss_of, hs, ys, use_reentrant=False)
        else:
            total = self.loss_of(h, y)
        return total / len(y)


model = GPT().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)
for step in range(3):
    ids = torch.randint(0, VOCAB, (6, 513), device="cuda")
    loss = model(ids)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
