"""Old manuscripts at twice the resolution: window attention as in SwinIR, Charbonnier loss, EMA every step."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def to_windows(x, w):
    b, h, wd, c = x.shape
    return x.view(b, h // w, w, wd // w, w, c).transpose(2, 3).reshape(-1, w * w, c)


def from_windows(x, w, h, wd):
    b = x.shape[0] // (h * wd // w // w)
    return x.view(b, h // w, wd // w, w, w, -1).transpose(2, 3).reshape(b, h, wd, -1)


class WindowAttention(nn.Module):
    def __init__(self, dim, window, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        coords = torch.stack(
            torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        ).flatten(1)
        rel = (coords[:, :, None] - coords[:, None]).permute(1, 2, 0) + window - 1
        self.register_buffer("index", rel[..., 0] * (2 * window - 1) + rel[..., 1])
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        attn = attn + self.table[self.index].permute(2, 0, 1)
        return self.proj((attn.softmax(-1) @ v).transpose(1, 2).reshape(n, t, c))


class SwinLayer(nn.Module):
    def __init__(self, dim, heads, window, shift):
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = WindowAttention(dim, window, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.norm1(x)
        if self.shift:
            h = torch.roll(h, (-self.shift, -self.shift), (1, 2))
        h = from_windows(self.attn(to_windows(h, self.window)), self.window, x.shape[1], x.shape[2])
        if self.shift:
            h = torch.roll(h, (self.shift, self.shift), (1, 2))
        x = x + h
        return x + self.mlp(self.norm2(x))


class RSTB(nn.Module):
    def __init__(self, dim, depth, heads, window):
        super().__init__()
        self.layers = nn.ModuleList(
            [SwinLayer(dim, heads, window, 0 if i % 2 == 0 else window // 2) for i in range(depth)]
        )
        self.conv = nn.Conv2d(dim, dim, 3, padding=1)

    def forward(self, x):
        h = x
        for layer in self.layers:
            h = layer(h)
        return x + self.conv(h.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class SwinIR(nn.Module):
    def __init__(self, dim=120, depths=(4, 4, 4), heads=6, window=8, scale=2):
        super().__init__()
        self.first = nn.Conv2d(1, dim, 3, padding=1)
        self.body = nn.Sequential(*[RSTB(dim, d, heads, window) for d in depths])
        self.norm = nn.LayerNorm(dim)
        self.after = nn.Conv2d(dim, dim, 3, padding=1)
        self.up = nn.Sequential(nn.Conv2d(dim, scale**2, 3, padding=1), nn.PixelShuffle(scale))

    def forward(self, x):
        shallow = self.first(x)
        deep = self.norm(self.body(shallow.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return self.up(self.after(deep) + shallow) + F.interpolate(
            x, scale_factor=2, mode="bicubic"
        )


def charbonnier(a, b, eps=1e-3):
    return torch.sqrt((a - b) ** 2 + eps**2).mean()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = SwinIR().cuda()
    ema = {k: v.detach().clone() for k, v in model.state_dict().items()}
    opt = torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.9, 0.99))
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [250_000, 400_000], 0.5)
    for it in range(8):
        high = torch.rand(8, 1, 128, 128).cuda()
        low = F.interpolate(high, scale_factor=0.5, mode="area")
        loss = charbonnier(model(low), high)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        with torch.no_grad():
            for k, v in model.state_dict().items():
                if v.is_floating_point():
                    ema[k].mul_(0.999).add_(v, alpha=0.001)
        print(f"iter {it} {loss.item():.5f}")
