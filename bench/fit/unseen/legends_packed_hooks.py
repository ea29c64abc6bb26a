"""Legends by a decoder whose saved activations are packed to bfloat16 by saved_tensors_hooks in every block: fp32 outside, ALiBi, squared ReLU, accumulation by hand, own schedule."""

import math

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F


def pack(t):
    if t.is_floating_point() and t.numel() > 1 << 16 and not isinstance(t, nn.Parameter):
        return t.dtype, t.to(torch.bfloat16)
    return None, t


def unpack(held):
    dtype, t = held
    return t if dtype is None else t.to(dtype)


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x, bias):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = q @ k.transpose(-1, -2) / math.sqrt(d // self.h) + bias
        x = x + self.proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.relu(self.up(self.n2(x))).square())


class Legend(nn.Module):
    def __init__(self, vocab, d=640, h=10, depth=10, t=384):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        slope = 2.0 ** (-8 * torch.arange(1, h + 1) / h)
        distance = torch.arange(t)[None] - torch.arange(t)[:, None]
        bias = slope[:, None, None] * distance.clamp(max=0)
        self.register_buffer("bias", bias.masked_fill(distance > 0, -math.inf), persistent=False)

    def forward(self, ids):
        x = self.tok(ids)
        for block in self.blocks:
            with saved_tensors_hooks(pack, unpack):
                x = block(x, self.bias)
        return self.norm(x) @ self.tok.weight.t()


def rate(step, top=5e-4, warm=2, end=6):
    if step < warm:
        return top * (step + 1) / warm
    return top * 0.5 * (1 + math.cos(math.pi * (step - warm) / (end - warm)))


torch.manual_seed(0)
vocab, micro = 16_000, 2
model = Legend(vocab).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1)
for step in range(4):
    opt.param_groups[0]["lr"] = rate(step)
    total = 0.0
    for _ in range(micro):
        ids = torch.randint(0, vocab, (10, 385), device="cuda")
        loss = F.cross_entropy(model(ids[:, :-1]).view(-1, vocab), ids[:, 1:].reshape(-1)) / micro
        loss.backward()
        total += loss.item()
    opt.step()
    opt.zero_grad(set_to_none=True)
    print(f"step {step} loss {total:.3f}")
