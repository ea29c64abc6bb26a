"""DDPM: a U-Net with time embedding and attention, lists of down and up blocks, EMA, fp16 scaler, loss on the noise."""

import math
from copy import deepcopy

import torch
import torch.nn as nn
import torch.nn.functional as F


class ResBlock(nn.Module):
    def __init__(self, cin, cout, temb, dropout=0.1):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.proj = nn.Linear(temb, cout)
        self.norm2, self.conv2 = nn.GroupNorm(32, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.drop = nn.Dropout(dropout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.proj(F.silu(t))[:, :, None, None]
        h = self.conv2(self.drop(F.silu(self.norm2(h))))
        return self.skip(x) + h


class Attention(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.norm, self.qkv, self.out = (
            nn.GroupNorm(32, c),
            nn.Conv2d(c, 3 * c, 1),
            nn.Conv2d(c, c, 1),
        )
        self.heads = heads

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        y = F.scaled_dot_product_attention(*(a.transpose(-1, -2) for a in (q, k, v)))
        return x + self.out(y.transpose(-1, -2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, ch=128, mults=(1, 2, 2), blocks=2):
        super().__init__()
        self.ch, temb = ch, 4 * ch
        self.time = nn.Sequential(nn.Linear(ch, temb), nn.SiLU(), nn.Linear(temb, temb))
        self.stem = nn.Conv2d(3, ch, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        sizes, c = [ch], ch
        for level, m in enumerate(mults):
            for _ in range(blocks):
                self.down.append(
                    nn.ModuleList(
                        [ResBlock(c, ch * m, temb), Attention(ch * m) if level else nn.Identity()]
                    )
                )
                c = ch * m
                sizes.append(c)
            if level < len(mults) - 1:
                self.down.append(nn.ModuleList([nn.Conv2d(c, c, 3, 2, 1)]))
                sizes.append(c)
        self.mid1, self.mida, self.mid2 = ResBlock(c, c, temb), Attention(c), ResBlock(c, c, temb)
        for level, m in reversed(list(enumerate(mults))):
            for k in range(blocks + 1):
                last = k == blocks and level > 0
                self.up.append(
                    nn.ModuleList([
                        ResBlock(c + sizes.pop(), ch * m, temb),
                        Attention(ch * m) if level else nn.Identity(),
                        nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(ch * m, ch * m, 3, padding=1)) if last else nn.Identity(),
                    ])
                )  # fmt: skip
                c = ch * m
        self.head = nn.Sequential(nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t):
        freqs = torch.exp(
            -math.log(10000) * torch.arange(self.ch // 2, device=x.device) / (self.ch // 2)
        )
        args = t[:, None].float() * freqs
        temb = self.time(torch.cat([args.sin(), args.cos()], -1))
        h = self.stem(x)
        skips = [h]
        for block in self.down:
            h = block[1](block[0](h, temb)) if len(block) == 2 else block[0](h)
            skips.append(h)
        h = self.mid2(self.mida(self.mid1(h, temb)), temb)
        for res, attn, up in self.up:
            h = up(attn(res(torch.cat([h, skips.pop()], 1), temb)))
        return self.head(h)


if __name__ == "__main__":
    T = 1000
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, T), 0).cuda()
    net = UNet().cuda()
    ema = deepcopy(net).requires_grad_(False).eval()
    opt = torch.optim.Adam(net.parameters(), lr=2e-4)
    scaler = torch.amp.GradScaler()
    for step in range(6):
        x0 = torch.rand(96, 3, 32, 32).cuda() * 2 - 1
        t = torch.randint(0, T, (len(x0),), device="cuda")
        noise = torch.randn_like(x0)
        a = alphas[t][:, None, None, None]
        with torch.autocast("cuda", torch.float16):
            loss = F.mse_loss(net(a.sqrt() * x0 + (1 - a).sqrt() * noise, t), noise)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        for p, q in zip(ema.parameters(), net.parameters()):
            p.data.mul_(0.999).add_(q.data, alpha=0.001)
    print(loss.item())
