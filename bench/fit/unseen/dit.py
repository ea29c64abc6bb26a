"""A diffusion transformer over latents with adaLN-Zero, flow matching, bf16 autocast."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    latent: int = 4
    side: int = 32
    patch: int = 2
    dim: int = 384
    depth: int = 12
    heads: int = 6
    classes: int = 1000
    batch: int = 48
    steps: int = 5


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim)
        )
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        nn.init.zeros_(self.ada[-1].weight)
        nn.init.zeros_(self.ada[-1].bias)

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(c).chunk(6, dim=1)
        h = modulate(self.norm1(x), s1, b1)
        b, n, d = h.shape
        q, k, v = self.qkv(h).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + g1.unsqueeze(1) * self.proj(h)
        return x + g2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), s2, b2))


class DiT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        tokens = (cfg.side // cfg.patch) ** 2
        self.embed = nn.Conv2d(cfg.latent, cfg.dim, cfg.patch, cfg.patch)
        self.pos = nn.Parameter(torch.randn(1, tokens, cfg.dim) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, cfg.dim), nn.SiLU(), nn.Linear(cfg.dim, cfg.dim))
        self.label = nn.Embedding(cfg.classes + 1, cfg.dim)
        self.blocks = nn.ModuleList(DiTBlock(cfg.dim, cfg.heads) for _ in range(cfg.depth))
        self.final = nn.Linear(cfg.dim, cfg.patch**2 * cfg.latent)

    def forward(self, x, t, y):
        freqs = torch.exp(-9.21 * torch.arange(128, device=x.device) / 128)
        args = t[:, None] * 1000 * freqs
        c = self.time(torch.cat([args.cos(), args.sin()], -1)) + self.label(y)
        h = self.embed(x).flatten(2).transpose(1, 2) + self.pos
        for blk in self.blocks:
            h = blk(h, c)
        h = self.final(F.layer_norm(h, h.shape[-1:]))
        p, s = self.cfg.patch, self.cfg.side // self.cfg.patch
        h = h.view(-1, s, s, p, p, self.cfg.latent)
        return torch.einsum("bhwpqc->bchpwq", h).reshape(x.shape)


def train(cfg):
    model = DiT(cfg).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    for step in range(cfg.steps):
        x1 = torch.randn(cfg.batch, cfg.latent, cfg.side, cfg.side, device="cuda")
        y = torch.randint(cfg.classes, (cfg.batch,), device="cuda")
        y = torch.where(torch.rand(cfg.batch, device="cuda") < 0.1, cfg.classes, y)
        t = torch.rand(cfg.batch, device="cuda")
        x0 = torch.randn_like(x1)
        xt = torch.lerp(x0, x1, t.view(-1, 1, 1, 1))
        with torch.autocast("cuda", torch.bfloat16):
            v = model(xt, t, y)
        loss = (v.float() - (x1 - x0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step}: {loss.item():.4f}")


train(Config())
