"""Plays by a GPT with an own Sophia-G: a diagonal Hessian from sampled labels every other step, clipped updates, three micro-batches, grouped queries, bf16."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class Config:
    vocab: int = 24576
    block: int = 512
    layers: int = 8
    heads: int = 12
    kv_heads: int = 4
    width: int = 768
    micro: int = 8
    accumulate: int = 3
    steps: int = 4
    lr: float = 4e-4


class SophiaG(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.965, 0.99), rho=0.04, weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, rho=rho, weight_decay=weight_decay))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["exp_avg"] = torch.zeros_like(p)
                self.state[p]["hessian"] = torch.zeros_like(p)

    @torch.no_grad()
    def update_hessian(self):
        for group in self.param_groups:
            b2 = group["betas"][1]
            for p in group["params"]:
                self.state[p]["hessian"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)

    @torch.no_grad()
    def step(self, bs):
        for group in self.param_groups:
            lr, rho, b1 = group["lr"], group["rho"], group["betas"][0]
            for p in group["params"]:
                m, h = self.state[p]["exp_avg"], self.state[p]["hessian"]
                p.mul_(1 - lr * group["weight_decay"])
                m.mul_(b1).add_(p.grad, alpha=1 - b1)
                ratio = (m.abs() / (rho * bs * h + 1e-15)).clamp_(max=1)
                p.addcmul_(m.sign(), ratio, value=-lr)


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(
            x
        ) * self.g


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c, self.hd = c, c.width // c.heads
        self.n1, self.n2 = RMSNorm(c.width), RMSNorm(c.width)
        self.q = nn.Linear(c.width, c.width, bias=False)
        self.kv = nn.Linear(c.width, 2 * c.kv_heads * self.hd, bias=False)
        self.o = nn.Linear(c.width, c.width, bias=False)
        self.fc, self.proj = nn.Linear(c.width, 4 * c.width), nn.Linear(4 * c.width, c.width)

    def forward(self, x):
        b, t, _ = x.shape
        h = self.n1(x)
        q = self.q(h).view(b, t, self.c.heads, self.hd).transpose(1, 2)
        k, v = self.kv(h).view(b, t, 2, self.c.kv_heads, self.hd).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, -1))
        return x + self.proj(F.relu(self.fc(self.n2(x))).square())


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c.vocab, c.width), nn.Embedding(c.block, c.width)
        self.layers = nn.ModuleList([Layer(c) for _ in range(c.layers)])
        self.norm, self.head = RMSNorm(c.width), nn.Linear(c.width, c.vocab, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, idx):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


c = Config()
torch.manual_seed(1616)
model = GPT(c).cuda()
opt = SophiaG(model.parameters(), lr=c.lr)
data = torch.randint(0, c.vocab, (200_000,))
ctx = torch.autocast("cuda", dtype=torch.bfloat16)


def get_batch():
    at = torch.randint(0, len(data) - c.block - 1, (c.micro,))
    x = torch.stack([data[i : i + c.block + 1] for i in at]).cuda()
    return x[:, :-1], x[:, 1:]


for it in range(c.steps):
    for group in opt.param_groups:
        group["lr"] = c.lr * 0.5 * (1 + math.cos(math.pi * it / 100))
    total = 0.0
    for _ in range(c.accumulate):
        x, y = get_batch()
        with ctx:
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        (loss / c.accumulate).backward()
        total += loss.item() / c.accumulate
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step(bs=c.accumulate * c.micro * c.block)
    opt.zero_grad(set_to_none=True)
    print(f"iter {it}: loss {total:.4f}")

    if it % 2 == 1:
        x, _ = get_batch()
        with ctx:
            logits = model(x).flatten(0, 1)
            drawn = torch.distributions.Categorical(logits=logits.detach().float()).sample()
            sampled = F.cross_entropy(logits, drawn)
        sampled.backward()
        opt.update_hessian()
        opt.zero_grad(set_to_none=True)
