"""A decoder of 0.7 B parameters on the tokens of old newspapers: RoPE, GQA, SwiGLU, bf16."""

import math
import os
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

STEPS = int(os.environ.get("JOB_STEPS", "5"))


@dataclass
class Args:
    vocab: int = 50_304
    dim: int = 1536
    layers: int = 22
    heads: int = 12
    kv_heads: int = 4
    ffn: int = 4352
    context: int = 1024


def rotary(length, dim, base=10_000.0):
    inverse = base ** (-torch.arange(0, dim, 2).float() / dim)
    angle = torch.outer(torch.arange(length).float(), inverse)
    return torch.cat([angle.cos(), angle.cos()], -1), torch.cat([angle.sin(), angle.sin()], -1)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Attention(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.h, self.kv, self.d = a.heads, a.kv_heads, a.dim // a.heads
        self.q = nn.Linear(a.dim, a.dim, bias=False)
        self.k = nn.Linear(a.dim, self.kv * self.d, bias=False)
        self.v = nn.Linear(a.dim, self.kv * self.d, bias=False)
        self.o = nn.Linear(a.dim, a.dim, bias=False)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.h, self.d).transpose(1, 2)
        k = self.k(x).view(B, T, self.kv, self.d).transpose(1, 2)
        v = self.v(x).view(B, T, self.kv, self.d).transpose(1, 2)
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(B, T, -1))


class Layer(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(a.dim), nn.RMSNorm(a.dim)
        self.attention = Attention(a)
        self.up = nn.Linear(a.dim, 2 * a.ffn, bias=False)
        self.down = nn.Linear(a.ffn, a.dim, bias=False)

    def forward(self, x, cos, sin):
        x = x + self.attention(self.n1(x), cos, sin)
        gate, up = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embed = nn.Embedding(a.vocab, a.dim)
        self.blocks = nn.ModuleList(Layer(a) for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.dim)
        self.head = nn.Linear(a.dim, a.vocab, bias=False)
        cos, sin = rotary(a.context, a.dim // a.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


args = Args()
torch.manual_seed(1337)
torch.set_float32_matmul_precision("high")
with torch.device("cuda"):
    model = Decoder(args)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")

matrices, vectors = ([p for p in model.parameters() if p.ndim == n] for n in (2, 1))
optimizer = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
    lr=3e-4,
    betas=(0.9, 0.95),
    fused=True,
)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min((s + 1) / 200, 0.55 + 0.45 * math.cos(math.pi * s / 20_000))
)
corpus = torch.randint(args.vocab, (2_000_000,), dtype=torch.int32)
micro, accumulate = 2, 5


def batch():
    at = torch.randint(len(corpus) - args.context - 1, (micro,))
    rows = torch.stack([corpus[i : i + args.context + 1] for i in at]).long().cuda()
    return rows[:, :-1], rows[:, 1:]


for step in range(STEPS):
    running = torch.zeros((), device="cuda")
    for _ in range(accumulate):
        x, y = batch()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x, y) / accumulate
        loss.backward()
        running += loss.detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"{step:5d} loss {running.item():.4f} |g| {norm.item():.3f}", flush=True)
