"""Librettos by an xLSTM language model of mLSTM blocks in the parallel form; forward gives the loss; compiled, bf16 autocast."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 32000
    width: int = 768
    layers: int = 8
    heads: int = 4
    conv: int = 4
    length: int = 1024
    batch: int = 4


class HeadNorm(nn.Module):
    def __init__(self, heads, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, 1, size))

    def forward(self, x):
        x = x.float()
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight


def mlstm_parallel(q, k, v, i, f):
    """Matrix memory of all the steps at once: an attention whose decay comes from the gates, stabilised row by row."""
    n = q.shape[2]
    forget = F.logsigmoid(f.float()).cumsum(-1)
    decay = forget[..., :, None] - forget[..., None, :] + i.float()[..., None, :]
    causal = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
    decay = decay.masked_fill(~causal, float("-inf"))
    top = decay.amax(-1, keepdim=True)
    weights = (q @ k.transpose(-1, -2)) * torch.exp(decay - top) / math.sqrt(q.shape[-1])
    norm = torch.maximum(weights.sum(-1, keepdim=True).abs(), torch.exp(-top))
    return (weights / (norm + 1e-6)).to(v.dtype) @ v


class MLSTMBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        inner = 2 * c.width
        self.heads = c.heads
        self.norm = nn.LayerNorm(c.width, bias=False)
        self.up = nn.Linear(c.width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, c.conv, padding=c.conv - 1, groups=inner)
        self.q, self.k, self.v = (nn.Linear(inner, inner, bias=False) for _ in range(3))
        self.gates = nn.Conv1d(inner, 2 * c.heads, 1)
        self.skip = nn.Parameter(torch.ones(inner))
        self.head_norm = HeadNorm(c.heads, inner // c.heads)
        self.down = nn.Linear(inner, c.width, bias=False)
        nn.init.zeros_(self.gates.weight)
        with torch.no_grad():
            self.gates.bias[: c.heads].normal_(0, 0.1)
            self.gates.bias[c.heads :] = torch.linspace(3.0, 6.0, c.heads)

    def forward(self, x):
        b, n, _ = x.shape
        inner, z = self.up(self.norm(x)).chunk(2, -1)
        causal = F.silu(self.conv(inner.transpose(1, 2))[..., :n])
        mixed = causal.transpose(1, 2)
        q, k, v = (
            t.view(b, n, self.heads, -1).transpose(1, 2)
            for t in (self.q(mixed), self.k(mixed), self.v(inner))
        )
        i, f = self.gates(causal).chunk(2, 1)
        h = self.head_norm(mlstm_parallel(q, k, v, i, f)).transpose(1, 2).reshape(b, n, -1)
        return x + self.down((h + self.skip * mixed) * F.silu(z))


class XLSTM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed = nn.Embedding(c.vocab, c.width)
        self.blocks = nn.ModuleList(MLSTMBlock(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width, bias=False)
        self.head = nn.Linear(c.width, c.vocab, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens):
        x = self.embed(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def main():
    torch.manual_seed(1843)
    c = Config()
    model = XLSTM(c).cuda()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters")
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=6e-4, betas=(0.9, 0.95), fused=True,
    )  # fmt: skip
    compiled = torch.compile(model)
    for step in range(5):
        tokens = torch.randint(c.vocab, (c.batch, c.length + 1), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(tokens)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.4f} norm {norm.item():.3f}")


if __name__ == "__main__":
    main()
