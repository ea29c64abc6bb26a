"""Fireworks as clips of 16 frames: a U-Net factored over space and time, v-prediction, min-SNR weights, EMA by lerp, bf16, Adam with warmup."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def fourier(t: Tensor, dim: int) -> Tensor:
    f = torch.exp(-math.log(1e4) * torch.arange(dim // 2, device=t.device) / (dim // 2))
    a = 1000 * t[:, None] * f
    return torch.cat([a.sin(), a.cos()], -1)


class SpaceTimeConv(nn.Module):
    """1 x 3 x 3, then 3 x 1 x 1, with a time embedding between."""

    def __init__(self, cin, cout, emb):
        super().__init__()
        self.n1, self.n2 = nn.GroupNorm(8, cin), nn.GroupNorm(8, cout)
        self.space = nn.Conv3d(cin, cout, (1, 3, 3), padding=(0, 1, 1))
        self.time = nn.Conv3d(cout, cout, (3, 1, 1), padding=(1, 0, 0))
        self.emb = nn.Linear(emb, 2 * cout)
        self.skip = nn.Conv3d(cin, cout, 1) if cin != cout else nn.Identity()
        nn.init.zeros_(self.time.weight)

    def forward(self, x, e):
        scale, shift = self.emb(e)[:, :, None, None, None].chunk(2, 1)
        h = self.space(F.silu(self.n1(x)))
        h = self.time(F.silu(self.n2(h) * (1 + scale) + shift))
        return self.skip(x) + h


class FrameAttention(nn.Module):
    def __init__(self, c, heads, over):
        super().__init__()
        self.over, self.heads = over, heads
        self.norm = nn.GroupNorm(8, c)
        self.qkv, self.out = nn.Linear(c, 3 * c), nn.Linear(c, c)

    def forward(self, x):
        b, c, t, h, w = x.shape
        y = self.norm(x)
        if self.over == "space":
            y = y.permute(0, 2, 3, 4, 1).reshape(b * t, h * w, c)
        else:
            y = y.permute(0, 3, 4, 2, 1).reshape(b * h * w, t, c)
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        if self.over == "space":
            y = y.view(b, t, h, w, c).permute(0, 4, 1, 2, 3)
        else:
            y = y.view(b, h, w, t, c).permute(0, 4, 3, 1, 2)
        return x + y


class VideoUNet(nn.Module):
    def __init__(self, ch=64, mults=(1, 2, 4), emb=256):
        super().__init__()
        self.emb = nn.Sequential(nn.Linear(128, emb), nn.SiLU(), nn.Linear(emb, emb), nn.SiLU())
        self.inp = nn.Conv3d(3, ch, (1, 3, 3), padding=(0, 1, 1))
        widths = [ch * m for m in mults]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        c = ch
        for w in widths:
            self.down.append(
                nn.ModuleDict(
                    {"conv": SpaceTimeConv(c, w, emb), "attn": FrameAttention(w, 4, "time")}
                )
            )
            c = w
        self.mid = nn.ModuleList([SpaceTimeConv(c, c, emb), SpaceTimeConv(c, c, emb)])
        self.mid_attn = FrameAttention(c, 4, "space")
        for w in reversed(widths):
            self.up.append(
                nn.ModuleDict(
                    {"conv": SpaceTimeConv(c + w, w, emb), "attn": FrameAttention(w, 4, "time")}
                )
            )
            c = w
        self.out = nn.Sequential(
            nn.GroupNorm(8, ch), nn.SiLU(), nn.Conv3d(ch, 3, (1, 3, 3), padding=(0, 1, 1))
        )

    def forward(self, x, t):
        e = self.emb(fourier(t, 128))
        x = self.inp(x)
        skips = []
        for level in self.down:
            x = level["attn"](level["conv"](x, e))
            skips.append(x)
            x = F.avg_pool3d(x, (1, 2, 2))
        x = self.mid[1](self.mid_attn(self.mid[0](x, e)), e)
        for level in self.up:
            x = F.interpolate(x, scale_factor=(1, 2, 2), mode="nearest")
            x = level["attn"](level["conv"](torch.cat([x, skips.pop()], 1), e))
        return self.out(x)


def loss_of(net, clip, gamma=5.0):
    t = torch.rand(len(clip), device=clip.device)
    alpha, sigma = torch.cos(t * math.pi / 2), torch.sin(t * math.pi / 2)
    a, s = (z[:, None, None, None, None] for z in (alpha, sigma))
    eps = torch.randn_like(clip)
    with torch.autocast("cuda", torch.bfloat16):
        v = net(a * clip + s * eps, t)
    snr = (alpha / sigma.clamp_min(1e-3)) ** 2
    weight = snr.clamp_max(gamma) / (snr + 1)
    return (weight * (v.float() - (a * eps - s * clip)).pow(2).mean((1, 2, 3, 4))).mean()


if __name__ == "__main__":
    net = VideoUNet().cuda()
    shadow = copy.deepcopy(net).requires_grad_(False)
    adam = torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.9, 0.99))
    warm = torch.optim.lr_scheduler.LambdaLR(adam, lambda s: min(1, (s + 1) / 1000))
    for it in range(5):
        clip = torch.rand(6, 3, 16, 64, 64, device="cuda") * 2 - 1
        loss = loss_of(net, clip)
        adam.zero_grad()
        loss.backward()
        adam.step()
        warm.step()
        with torch.no_grad():
            for s, p in zip(shadow.parameters(), net.parameters()):
                s.lerp_(p, 1e-3)
        print(it, loss.item())
