"""Pictures as tokens, some of them hidden: a transformer names each of 65 536 codes. The loss is over all of them, for all pictures."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

MENDED = os.environ.get("MENDED")
CODES, TOKENS, BATCH = 65536, 256, 20


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2))
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norms[1](x))


class MaskGIT(nn.Module):
    def __init__(self, d=128, layers=4):
        super().__init__()
        self.codes = nn.Embedding(CODES + 1, d)
        self.places = nn.Parameter(torch.zeros(TOKENS, d))
        self.blocks = nn.Sequential(*(Block(d, 4) for _ in range(layers)), nn.LayerNorm(d))
        self.name = nn.Linear(d, CODES)

    def forward(self, tokens):
        return self.blocks(self.codes(tokens) + self.places)

    def loss(self, tokens, hidden):
        x = self(tokens.masked_fill(hidden, CODES)).flatten(0, 1)
        wanted = torch.where(hidden, tokens, -100).flatten()
        if MENDED:
            parts = [
                checkpoint(self.summed, part, codes, use_reentrant=False)
                for part, codes in zip(x.split(256), wanted.split(256))
            ]
            return sum(parts) / hidden.sum()
        return self.summed(x, wanted) / hidden.sum()

    def summed(self, x, wanted):
        return F.cross_entropy(self.name(x), wanted, reduction="sum", ignore_index=-100)


model = MaskGIT().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    tokens = torch.randint(0, CODES, (BATCH, TOKENS)).cuda()
    hidden = (torch.rand(BATCH, TOKENS) < torch.rand(BATCH, 1)).cuda()
    loss = model.loss(tokens, hidden)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
