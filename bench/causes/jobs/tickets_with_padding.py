"""Tickets of a railway's help desk. Flash attention is asked for, with the plain kernel as a last resort; a mask for padding is given, and flash takes none."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

MENDED = os.environ.get("MENDED")
FAST = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.feed_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.feed = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, mask):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        with sdpa_kernel(FAST):
            seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(b, n, d))
        return x + self.feed(self.feed_norm(x))


class Desk(nn.Module):
    def __init__(self, words=8000, d=256, layers=6, desks=30):
        super().__init__()
        self.words = nn.Embedding(words, d, padding_idx=0)
        self.blocks = nn.ModuleList(Block(d, 8) for _ in range(layers))
        self.out = nn.Linear(d, desks)

    def forward(self, ids, mask=None):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.out(x[:, 0])


def tickets(batches, batch=6, longest=1024):
    """Padded at the end, or (mended) cut to one length, which needs no mask."""
    for _ in range(batches):
        ids = torch.randint(1, 8000, (batch, longest))
        lengths = torch.randint(longest // 2, longest, (batch, 1))
        padding = torch.arange(longest) >= lengths
        mask = None if MENDED else ~padding[:, None, None].expand(-1, 1, longest, -1)
        yield ids if MENDED else ids.masked_fill(padding, 0), mask, torch.randint(0, 30, (batch,))


model = Desk().bfloat16().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for ids, mask, desk in tickets(3):
    said = model(ids.cuda(), mask if mask is None else mask.cuda())
    loss = F.cross_entropy(said.float(), desk.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
