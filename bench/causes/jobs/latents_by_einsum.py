"""A sampler of pictures in half precision. Its network looks from every place of a latent to every other, by einsum."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F


class ResBlock(nn.Module):
    def __init__(self, c, t):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, c), nn.GroupNorm(16, c)
        self.conv1, self.conv2 = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.time = nn.Linear(t, c)

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return x + self.conv2(F.silu(self.norm2(h)))


class CrossAttention(nn.Module):
    """Looks at the text, or at itself if there is none."""

    def __init__(self, c, heads=4, text=None):
        super().__init__()
        self.heads = heads
        self.q, self.out = nn.Linear(c, c, bias=False), nn.Linear(c, c)
        self.k, self.v = (nn.Linear(text or c, c, bias=False) for _ in range(2))

    def forward(self, x, context=None):
        context = x if context is None else context
        q, k, v = (
            f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f, y in ((self.q, x), (self.k, context), (self.v, context))
        )
        if os.environ.get("MENDED"):
            o = F.scaled_dot_product_attention(q, k, v)
        else:
            sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5
            o = torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(-1), v)
        return self.out(o.transpose(1, 2).flatten(2))


class SpatialTransformer(nn.Module):
    def __init__(self, c, text):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(3))
        self.itself, self.words = CrossAttention(c), CrossAttention(c, text=text)
        self.ff = nn.Sequential(nn.Linear(c, 4 * c), nn.GELU(), nn.Linear(4 * c, c))

    def forward(self, x, words):
        b, c, h, w = x.shape
        y = x.flatten(2).transpose(1, 2)
        y = y + self.itself(self.norms[0](y))
        y = y + self.words(self.norms[1](y), words)
        y = y + self.ff(self.norms[2](y))
        return x + y.transpose(1, 2).reshape(b, c, h, w)


class Denoiser(nn.Module):
    def __init__(self, c=128, text=256, depth=3):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(c, 4 * c), nn.SiLU(), nn.Linear(4 * c, 4 * c))
        self.inward, self.outward = nn.Conv2d(4, c, 3, padding=1), nn.Conv2d(c, 4, 3, padding=1)
        self.res = nn.ModuleList(ResBlock(c, 4 * c) for _ in range(depth))
        self.look = nn.ModuleList(SpatialTransformer(c, text) for _ in range(depth))

    def forward(self, x, t, words):
        waves = torch.exp(torch.arange(64, device=x.device, dtype=x.dtype) * -0.14) * t
        t = self.time(torch.cat([waves.sin(), waves.cos()], -1)).expand(len(x), -1)
        x = self.inward(x)
        for res, look in zip(self.res, self.look):
            x = look(res(x, t), words)
        return self.outward(x)


class Pipeline:
    def __init__(self, unet, steps=5, guidance=7.5):
        self.unet, self.guidance = unet, guidance
        self.alphas = torch.linspace(0.9999, 0.98, 1000).cumprod(0)
        self.times = torch.linspace(999, 0, steps).long().tolist()

    @torch.inference_mode()
    def __call__(self, words, side=64):
        x = torch.randn(len(words) // 2, 4, side, side, device="cuda", dtype=torch.half)
        for now, then in zip(self.times, [*self.times[1:], 0]):
            blind, told = self.unet(torch.cat([x, x]), now / 1000, words).chunk(2)
            noise = blind + self.guidance * (told - blind)
            a, b = self.alphas[now].item(), self.alphas[then].item()
            x = b**0.5 * (x - (1 - a) ** 0.5 * noise) / a**0.5 + (1 - b) ** 0.5 * noise
        return x


words = torch.randn(4, 77, 256, device="cuda", dtype=torch.half)  # two of nothing, two of a prompt
print(Pipeline(Denoiser().half().cuda().eval())(words).shape)
