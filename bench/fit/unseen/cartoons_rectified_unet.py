"""Rectified flow on cartoons: a U-Net with attention at two levels, class labels dropped at random, EMA, bf16."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def timestep_embedding(t, dim):
    freqs = torch.exp(-math.log(10000) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    args = t[:, None] * 1000 * freqs
    return torch.cat([args.cos(), args.sin()], -1)


class Res(nn.Module):
    def __init__(self, cin, cout, emb):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(32, cin), nn.Conv2d(cin, cout, 3, padding=1)
        self.emb = nn.Linear(emb, 2 * cout)
        self.n2, self.c2 = nn.GroupNorm(32, cout), nn.Conv2d(cout, cout, 3, padding=1)
        self.drop = nn.Dropout(0.1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, e):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.emb(F.silu(e))[:, :, None, None].chunk(2, 1)
        h = self.n2(h) * (1 + scale) + shift
        return self.skip(x) + self.c2(self.drop(F.silu(h)))


class Attn(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, c), heads
        self.qkv, self.proj = nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = (
            self.qkv(self.norm(x))
            .view(b, 3, self.heads, c // self.heads, h * w)
            .transpose(3, 4)
            .unbind(1)
        )
        out = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj(out.transpose(2, 3).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, base=96, mult=(1, 2, 3, 4), classes=20, attn=(2, 3)):
        super().__init__()
        emb = 4 * base
        self.base = base
        self.time = nn.Sequential(nn.Linear(base, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.label = nn.Embedding(classes + 1, emb)
        self.inp = nn.Conv2d(3, base, 3, padding=1)
        self.down, chans, c = nn.ModuleList(), [base], base
        for i, m in enumerate(mult):
            for _ in range(2):
                self.down.append(
                    nn.ModuleList(
                        [Res(c, base * m, emb), Attn(base * m) if i in attn else nn.Identity()]
                    )
                )
                c = base * m
                chans.append(c)
            if i < len(mult) - 1:
                self.down.append(nn.Conv2d(c, c, 3, 2, 1))
                chans.append(c)
        self.mid = nn.ModuleList([Res(c, c, emb), Attn(c), Res(c, c, emb)])
        self.up = nn.ModuleList()
        for i, m in reversed(list(enumerate(mult))):
            for _ in range(3):
                self.up.append(
                    nn.ModuleList(
                        [
                            Res(c + chans.pop(), base * m, emb),
                            Attn(base * m) if i in attn else nn.Identity(),
                        ]
                    )
                )
                c = base * m
            if i:
                self.up.append(
                    nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(c, c, 3, padding=1))
                )
        self.out = nn.Sequential(nn.GroupNorm(32, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t, y):
        e = self.time(timestep_embedding(t, self.base)) + self.label(y)
        h = self.inp(x)
        hs = [h]
        for layer in self.down:
            if isinstance(layer, nn.ModuleList):
                h = layer[1](layer[0](h, e))
            else:
                h = layer(h)
            hs.append(h)
        h = self.mid[2](self.mid[1](self.mid[0](h, e)), e)
        for layer in self.up:
            if isinstance(layer, nn.ModuleList):
                h = layer[1](layer[0](torch.cat([h, hs.pop()], 1), e))
            else:
                h = layer(h)
        return self.out(h)


def main():
    model = UNet().cuda()
    ema = copy.deepcopy(model).eval().requires_grad_(False)
    opt = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.9, 0.99))
    for step in range(7):
        x1 = torch.rand(32, 3, 64, 64).cuda() * 2 - 1
        y = torch.randint(0, 20, (32,)).cuda()
        y = torch.where(torch.rand(32, device="cuda") < 0.1, 20, y)
        x0, t = torch.randn_like(x1), torch.sigmoid(torch.randn(32, device="cuda"))
        xt = torch.lerp(x0, x1, t[:, None, None, None])
        with torch.autocast("cuda", torch.bfloat16):
            v = model(xt, t, y)
        loss = F.mse_loss(v.float(), x1 - x0)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 1e-3)
        print(step, loss.item())


main()
