"""A retention network over source code bytes, compiled, in bf16."""

import math
import time
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 32000
    dim: int = 768
    heads: int = 6
    layers: int = 8
    context: int = 1024
    batch: int = 8
    steps: int = 10
    lr: float = 4e-4
    accumulate: int = 2


class Retention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.qk = nn.Linear(cfg.dim, 2 * cfg.dim, bias=False)
        self.vg = nn.Linear(cfg.dim, 4 * cfg.dim, bias=False)
        self.out = nn.Linear(2 * cfg.dim, cfg.dim, bias=False)
        self.norm = nn.GroupNorm(cfg.heads, 2 * cfg.dim)
        gamma = 1 - torch.exp(torch.linspace(math.log(1 / 32), math.log(1 / 512), cfg.heads))
        n = torch.arange(cfg.context)
        distance = (n[:, None] - n[None, :]).clamp(min=0)
        decay = (gamma[:, None, None] ** distance) * (n[:, None] >= n[None, :])
        self.register_buffer("decay", decay / decay.sum(-1, keepdim=True).sqrt(), persistent=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k = self.qk(x).view(b, n, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        v, gate = self.vg(x).chunk(2, -1)
        v = v.view(b, n, self.heads, -1).transpose(1, 2)
        scores = (
            (q @ k.transpose(-1, -2)) * (q.shape[-1] ** -0.5) * self.decay[:, :n, :n].to(q.dtype)
        )
        scores = scores / scores.detach().abs().sum(-1, keepdim=True).clamp(min=1)
        y = (scores @ v).transpose(1, 2).reshape(b * n, -1)
        y = self.norm(y).view(b, n, -1)
        return self.out(F.silu(gate) * y)


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(cfg.dim), nn.RMSNorm(cfg.dim)
        self.retention = Retention(cfg)
        self.up = nn.Linear(cfg.dim, 2 * cfg.dim, bias=False)
        self.gate = nn.Linear(cfg.dim, 2 * cfg.dim, bias=False)
        self.down = nn.Linear(2 * cfg.dim, cfg.dim, bias=False)

    def forward(self, x):
        x = x + self.retention(self.n1(x))
        h = self.n2(x)
        return x + self.down(F.gelu(self.gate(h)) * self.up(h))


class RetNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab, cfg.dim)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = nn.RMSNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab, bias=False)
        self.head.weight = self.embed.weight
        self.apply(
            lambda m: (
                nn.init.normal_(m.weight, std=0.02)
                if isinstance(m, (nn.Linear, nn.Embedding))
                else None
            )
        )

    def forward(self, ids, targets):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def get_batch(data, cfg, g):
    at = torch.randint(len(data) - cfg.context - 1, (cfg.batch,), generator=g)
    x = torch.stack([data[i : i + cfg.context] for i in at])
    y = torch.stack([data[i + 1 : i + 1 + cfg.context] for i in at])
    return x.pin_memory().cuda(non_blocking=True), y.pin_memory().cuda(non_blocking=True)


def main():
    cfg = Config()
    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high")
    g = torch.Generator().manual_seed(1)
    data = torch.randint(cfg.vocab, (200_000,), generator=g)
    model = RetNet(cfg).cuda()
    step_fn = torch.compile(model)
    optim = torch.optim.AdamW(model.parameters(), lr=cfg.lr, betas=(0.9, 0.95), fused=True)
    t0 = time.time()
    for step in range(cfg.steps):
        for group in optim.param_groups:
            group["lr"] = cfg.lr * 0.5 * (1 + math.cos(math.pi * step / cfg.steps))
        for _ in range(cfg.accumulate):
            x, y = get_batch(data, cfg, g)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = step_fn(x, y)
            (loss / cfg.accumulate).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad(set_to_none=True)
        tokens = cfg.batch * cfg.context * cfg.accumulate
        print(
            f"{step} loss {loss.item():.3f} norm {norm.item():.2f} {tokens / (time.time() - t0):.0f} tok/s",
            flush=True,
        )
        t0 = time.time()


if __name__ == "__main__":
    main()
