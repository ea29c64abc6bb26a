"""Galaxies by their raw pixels: a few latents look at all sixteen thousand of them, and what each looked at is multiplied out."""

import os

import torch
from torch import einsum, nn

MENDED = os.environ.get("MENDED")


def fourier(side, bands=16):
    """Where each pixel is, in waves: (side², 4 bands)."""
    at = torch.linspace(-1, 1, side)
    grid = torch.stack(torch.meshgrid(at, at, indexing="ij"), -1).view(-1, 2, 1)
    waves = grid * torch.linspace(1, side / 2, bands) * torch.pi
    return torch.cat([waves.sin(), waves.cos()], -1).flatten(1)


class PreNorm(nn.Module):
    def __init__(self, d, inner, context=None):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(d), inner
        self.norm_context = nn.LayerNorm(context) if context else None

    def forward(self, x, context=None):
        if self.norm_context:
            return x + self.inner(self.norm(x), self.norm_context(context))
        return x + self.inner(self.norm(x))


class Attention(nn.Module):
    def __init__(self, d, context=None, heads=4, width=32):
        super().__init__()
        self.h, inner = heads, heads * width
        self.to_q = nn.Linear(d, inner, bias=False)
        self.to_kv = nn.Linear(context or d, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, d)

    def forward(self, x, context=None):
        q = self.to_q(x)
        k, v = self.to_kv(x if context is None else context).chunk(2, -1)
        q, k, v = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (q, k, v))
        if MENDED:
            out = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            attention = (einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5).softmax(
                -1
            )
            out = einsum("b h i j, b h j d -> b h i d", attention, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


def feed_forward(d):
    return nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))


class Perceiver(nn.Module):
    def __init__(self, side=128, latents=256, d=192, reads=2, classes=10):
        super().__init__()
        self.register_buffer("places", fourier(side))
        context = 3 + self.places.shape[1]
        self.latents = nn.Parameter(torch.randn(latents, d) * 0.02)
        self.reads = nn.ModuleList()
        for _ in range(reads):
            self.reads.append(
                nn.ModuleList([
                    PreNorm(d, Attention(d, context), context), PreNorm(d, feed_forward(d)),
                    PreNorm(d, Attention(d)), PreNorm(d, feed_forward(d)),
                ])
            )  # fmt: skip
        self.head = nn.Linear(d, classes)

    def forward(self, image):
        pixels = image.flatten(2).transpose(1, 2)
        pixels = torch.cat([pixels, self.places.expand(len(image), -1, -1)], -1)
        x = self.latents.expand(len(image), -1, -1)
        for look, think, talk, again in self.reads:
            x = again(talk(think(look(x, pixels))))
        return self.head(x.mean(1))


perceiver = Perceiver().cuda()
optimizer = torch.optim.AdamW(perceiver.parameters(), 4e-4)
for step in range(3):
    galaxies, kinds = torch.rand(6, 3, 128, 128).cuda(), torch.randint(10, (6,)).cuda()
    loss = nn.functional.cross_entropy(perceiver(galaxies), kinds)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
