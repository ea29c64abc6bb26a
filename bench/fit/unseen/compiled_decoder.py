"""A small decoder with rotary positions and SwiGLU, under torch.compile."""

import torch
import torch._dynamo
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).type_as(x) * self.g


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)
        self.qkv = nn.Linear(d, 3 * d, bias=False)
        self.o = nn.Linear(d, d, bias=False)
        self.w1 = nn.Linear(d, 3 * d, bias=False)
        self.w2 = nn.Linear(d, 3 * d, bias=False)
        self.w3 = nn.Linear(3 * d, d, bias=False)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).unbind(2)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(
            self.rotate(q, cos, sin), self.rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        h = self.n2(x)
        return x + self.w3(F.silu(self.w1(h)) * self.w2(h))


class Decoder(nn.Module):
    def __init__(self, vocab=8192, d=384, depth=3, heads=6, t=512):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList([Block(d, heads) for _ in range(depth)])
        self.norm = RMSNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.emb.weight
        freq = 10000 ** (-torch.arange(0, d // heads, 2) / (d // heads))
        angles = torch.outer(torch.arange(t), freq)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids, targets):
        x = self.emb(ids)
        for b in self.blocks:
            x = b(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = torch.compile(Decoder().cuda())
opt = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
for i in range(4):
    tokens = torch.randint(0, 8192, (16, 513), device="cuda")
    loss = model(tokens[:, :-1], tokens[:, 1:].contiguous())
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    print(i, loss.item())
