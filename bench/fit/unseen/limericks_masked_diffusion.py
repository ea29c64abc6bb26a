"""Limericks by masked diffusion: a bidirectional transformer with adaptive norms learns to fill masked tokens at every rate, bf16, EMA, samples in between."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t):
        half = self.dim // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
        angles = t[:, None] * 1000 * freqs
        return self.mlp(torch.cat([angles.cos(), angles.sin()], -1))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class DDiTBlock(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.modulation = nn.Linear(dim, 6 * dim)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)

    def forward(self, x, c, rope):
        b, n, d = x.shape
        s1, k1, g1, s2, k2, g2 = self.modulation(c)[:, None].chunk(6, -1)
        h = self.norm1(x) * (1 + k1) + s1
        q, k, v = self.qkv(h).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(rotate(q, *rope), rotate(k, *rope), v)
        h = self.proj(h.transpose(1, 2).reshape(b, n, d))
        x = x + g1 * F.dropout(h, self.dropout, self.training)
        h = self.down(F.gelu(self.up(self.norm2(x) * (1 + k2) + s2), approximate="tanh"))
        return x + g2 * F.dropout(h, self.dropout, self.training)


class MaskedDiffusion(nn.Module):
    def __init__(self, vocab=16384, dim=640, heads=10, depth=10, length=320, dropout=0.1):
        super().__init__()
        self.mask_id, self.length = vocab, length
        self.embed, self.time = nn.Embedding(vocab + 1, dim), TimeEmbedding(dim)
        self.blocks = nn.ModuleList([DDiTBlock(dim, heads, dropout) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab)
        inv = 1.0 / 10000 ** (torch.arange(0, dim // heads, 2) / (dim // heads))
        angle = torch.arange(length)[:, None] * inv
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, z, t):
        c = F.silu(self.time(t))
        x = self.embed(z)
        rope = (self.cos.to(x.dtype), self.sin.to(x.dtype))
        for block in self.blocks:
            x = block(x, c, rope)
        return self.head(self.norm(x))

    def loss(self, x0):
        # Antithetic times: one draw, spread evenly over the batch.
        t = (
            torch.rand(1, device=x0.device) + torch.arange(len(x0), device=x0.device) / len(x0)
        ) % 1
        t = t * 0.999 + 1e-3
        hidden = torch.rand(x0.shape, device=x0.device) < t[:, None]
        logits = self(torch.where(hidden, self.mask_id, x0), t)
        nll = F.cross_entropy(logits.float().transpose(1, 2), x0, reduction="none")
        return (nll * hidden / t[:, None]).sum() / x0.numel()

    @torch.no_grad()
    def sample(self, n, steps, device):
        z = torch.full((n, self.length), self.mask_id, device=device)
        for i in range(steps, 0, -1):
            t = torch.full((n,), i / steps, device=device)
            guess = torch.distributions.Categorical(logits=self(z, t).float()).sample()
            reveal = (torch.rand(z.shape, device=device) < 1 / i) & (z == self.mask_id)
            z = torch.where(reveal, guess, z)
        return z


@torch.no_grad()
def update_ema(ema, model, decay):
    for a, b in zip(ema.state_dict().values(), model.state_dict().values()):
        a.mul_(decay).add_(b, alpha=1 - decay)


def main():
    torch.manual_seed(99)
    device = "cuda"
    model = MaskedDiffusion().to(device)
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.999), weight_decay=0)
    for step in range(1, 6):
        x0 = torch.randint(0, 16384, (14, 320)).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = model.loss(x0)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        update_ema(ema, model, 0.9999)
        print(f"step {step} nelbo {loss.item():.4f}")
        if step == 3:
            with torch.autocast(device, dtype=torch.bfloat16):
                print("sample", tuple(ema.sample(2, 4, device).shape))


if __name__ == "__main__":
    main()
