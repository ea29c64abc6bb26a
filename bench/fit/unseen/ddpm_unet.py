"""Denoising diffusion with a U-Net whose skips lie in a dictionary, and an average of the weights."""

import copy
import math

import torch
from torch import nn


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.net = nn.Sequential(nn.Linear(dim, dim * 4), nn.SiLU(), nn.Linear(dim * 4, dim * 4))

    def forward(self, t):
        half = self.dim // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / half)
        args = t[:, None].float() * freqs[None]
        return self.net(torch.cat([args.cos(), args.sin()], dim=-1))


class ResBlock(nn.Module):
    def __init__(self, cin, cout, tdim, dropout=0.1):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, cin), nn.Conv2d(cin, cout, 3, 1, 1)
        self.time = nn.Linear(tdim, 2 * cout)
        self.norm2, self.conv2 = nn.GroupNorm(32, cout), nn.Conv2d(cout, cout, 3, 1, 1)
        self.drop = nn.Dropout(dropout)
        self.short = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(nn.functional.silu(self.norm1(x)))
        scale, shift = self.time(nn.functional.silu(emb))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.short(x) + self.conv2(self.drop(nn.functional.silu(h)))


class SelfAttention2d(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(32, c)
        self.qkv, self.proj = nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        weight = torch.softmax(q.transpose(-1, -2) @ k * (c // self.heads) ** -0.5, dim=-1)
        out = (v @ weight.transpose(-1, -2)).reshape(b, c, h, w)
        return x + self.proj(out)


class UNet(nn.Module):
    def __init__(self, base=96, mults=(1, 2, 3)):
        super().__init__()
        tdim = base * 4
        self.time = TimeEmbedding(base)
        self.stem = nn.Conv2d(3, base, 3, 1, 1)
        self.blocks = nn.ModuleDict()
        c = base
        for level, m in enumerate(mults):
            self.blocks[f"down{level}"] = ResBlock(c, base * m, tdim)
            c = base * m
            if level < len(mults) - 1:
                self.blocks[f"pool{level}"] = nn.Conv2d(c, c, 3, 2, 1)
        self.blocks["mid1"] = ResBlock(c, c, tdim)
        self.blocks["attn"] = SelfAttention2d(c)
        self.blocks["mid2"] = ResBlock(c, c, tdim)
        for level, m in reversed(list(enumerate(mults))):
            self.blocks[f"up{level}"] = ResBlock(c + base * m, base * m, tdim)
            c = base * m
            if level:
                self.blocks[f"grow{level}"] = nn.ConvTranspose2d(c, c, 4, 2, 1)
        self.out = nn.Sequential(nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 3, 3, 1, 1))
        self.levels = len(mults)

    def forward(self, x, t):
        emb = self.time(t)
        skips = {}
        x = self.stem(x)
        for level in range(self.levels):
            x = self.blocks[f"down{level}"](x, emb)
            skips[level] = x
            if level < self.levels - 1:
                x = self.blocks[f"pool{level}"](x)
        x = self.blocks["mid2"](self.blocks["attn"](self.blocks["mid1"](x, emb)), emb)
        for level in reversed(range(self.levels)):
            x = self.blocks[f"up{level}"](torch.cat([x, skips[level]], 1), emb)
            if level:
                x = self.blocks[f"grow{level}"](x)
        return self.out(x)


class EMA:
    def __init__(self, model, decay=0.9999):
        self.shadow, self.decay = copy.deepcopy(model).eval().requires_grad_(False), decay

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)


T = 1000
betas = torch.linspace(1e-4, 0.02, T, device="cuda")
alpha_bar = torch.cumprod(1 - betas, 0)
unet = UNet().cuda()
ema = EMA(unet)
opt = torch.optim.AdamW(unet.parameters(), lr=2e-4)
for step in range(5):
    x0 = torch.rand(24, 3, 48, 48).cuda() * 2 - 1
    t = torch.randint(0, T, (x0.size(0),), device=x0.device)
    noise = torch.randn_like(x0)
    ab = alpha_bar[t].view(-1, 1, 1, 1)
    pred = unet(ab.sqrt() * x0 + (1 - ab).sqrt() * noise, t)
    loss = nn.functional.mse_loss(pred, noise)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    opt.step()
    ema.update(unet)
    print(step, float(loss))
