"""Dialogues: a GPT where every second MLP is eight experts, top two, capacity by sorting, balance loss; fp32 with TF32."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

torch.set_float32_matmul_precision("high")


@dataclass
class Config:
    vocab: int = 32_000
    block: int = 512
    width: int = 512
    heads: int = 8
    layers: int = 6
    experts: int = 8
    top_k: int = 2
    capacity: float = 1.25


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.router = nn.Linear(c.width, c.experts, bias=False)
        self.w_in = nn.Parameter(torch.randn(c.experts, c.width, 4 * c.width) * 0.02)
        self.w_out = nn.Parameter(torch.randn(c.experts, 4 * c.width, c.width) * 0.02)

    def forward(self, x):
        c = self.c
        flat = x.reshape(-1, c.width)
        probs = self.router(flat).softmax(-1)
        gate, expert = probs.topk(c.top_k, dim=-1)
        gate = gate / gate.sum(-1, keepdim=True)
        slots = int(c.capacity * len(flat) * c.top_k / c.experts)
        chosen = F.one_hot(expert.flatten(), c.experts)
        position = ((chosen.cumsum(0) - 1) * chosen).sum(-1)
        keep = position < slots
        index = torch.where(keep, expert.flatten() * slots + position, c.experts * slots)
        token = torch.arange(len(flat), device=x.device).repeat_interleave(c.top_k)
        buffer = torch.zeros(c.experts * slots + 1, c.width, device=x.device).index_copy(
            0, index, flat[token]
        )
        h = buffer[:-1].view(c.experts, slots, c.width)
        h = torch.bmm(F.gelu(torch.bmm(h, self.w_in)), self.w_out).flatten(0, 1)
        h = torch.cat([h, torch.zeros_like(h[:1])])
        out = torch.zeros_like(flat).index_add(
            0, token, h[index] * (gate.flatten() * keep)[:, None]
        )
        balance = c.experts * (probs.mean(0) * chosen.float().mean(0) * c.top_k).sum()
        return out.view_as(x), balance


class Block(nn.Module):
    def __init__(self, c, sparse):
        super().__init__()
        self.heads, self.sparse = c.heads, sparse
        self.n1, self.n2 = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.qkv, self.o = nn.Linear(c.width, 3 * c.width), nn.Linear(c.width, c.width)
        self.mlp = (
            Experts(c)
            if sparse
            else nn.Sequential(
                nn.Linear(c.width, 4 * c.width), nn.GELU(), nn.Linear(4 * c.width, c.width)
            )
        )

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        if not self.sparse:
            return x + self.mlp(self.n2(x)), 0.0
        h, balance = self.mlp(self.n2(x))
        return x + h, balance


class MoEGPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c.vocab, c.width), nn.Embedding(c.block, c.width)
        self.blocks = nn.ModuleList([Block(c, i % 2 == 1) for i in range(c.layers)])
        self.norm, self.head = nn.LayerNorm(c.width), nn.Linear(c.width, c.vocab, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids, targets):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        aux = 0.0
        for block in self.blocks:
            x, balance = block(x)
            aux = aux + balance
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1)) + 0.01 * aux


if __name__ == "__main__":
    c = Config()
    model = MoEGPT(c).to("cuda")
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    for it in range(8):
        data = torch.randint(0, c.vocab, (12, c.block + 1), device="cuda")
        loss = model(data[:, :-1], data[:, 1:])
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"{it}: {loss.item():.3f}")
