"""Adapters of customers are merged into copies of one model, which are tried and written to disk. The report keeps what it reports on."""

import copy
import os
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class Block(nn.Module):
    def __init__(self, d, heads=8):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(x)))


class Support(nn.Module):
    """Which of forty answers a question of a customer wants."""

    def __init__(self, words=12000, d=768, layers=8):
        super().__init__()
        self.embed = nn.Embedding(words, d)
        self.blocks = nn.Sequential(*(Block(d) for _ in range(layers)))
        self.answers = nn.Linear(d, 40)

    def forward(self, ids):
        return self.answers(self.blocks(self.embed(ids)).mean(1))


def adapter(model, rank=8):
    """The two small matrices of each large one, as a customer's file has them."""
    return {
        name: (torch.randn(w.shape[0], rank) * 0.01, torch.randn(rank, w.shape[1]) * 0.01)
        for name, w in model.named_parameters()
        if ".qkv." in name or ".up." in name
    }


@torch.inference_mode()
def merged(base, pairs):
    model = copy.deepcopy(base)
    for name, weight in model.named_parameters():
        if name in pairs:
            a, b = pairs[name]
            weight += a.cuda() @ b.cuda()
    return model


base, report = Support().cuda().eval(), []
with tempfile.TemporaryDirectory() as place:
    for customer in ("bank", "zoo", "port", "bakery", "museum", "circus", "mint", "farm"):
        model = merged(base, adapter(base))
        with torch.inference_mode():
            sure = model(torch.randint(0, 12000, (16, 64)).cuda()).softmax(1).amax(1).mean().item()
        torch.save(adapter(base), Path(place) / f"{customer}.pt")
        report.append((customer, sure) if MENDED else (customer, sure, model))
for customer, sure, *_ in report:
    print(f"{customer:8} {sure:.2f}")
