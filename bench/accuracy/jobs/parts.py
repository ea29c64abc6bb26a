"""Models that several files of jobs use, written as people write them."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from job import device


def built(cls, config, dtype=torch.float32):
    """A transformers model made from its configuration, on the device and in the given type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return cls(config)
    finally:
        torch.set_default_dtype(before)


class Block(nn.Module):
    """A transformer block, pre-norm; attends to `context` too where it is given."""

    def __init__(self, width, heads, causal=False, context=None, expand=4):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, expand * width), nn.GELU(), nn.Linear(expand * width, width)
        )
        if context:
            self.norm3 = nn.LayerNorm(width)
            self.query, self.key_value = nn.Linear(width, width), nn.Linear(context, 2 * width)
            self.cross = nn.Linear(width, width)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, context=None):
        q, k, v = (self.split(t) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        if context is not None:
            k, v = (self.split(t) for t in self.key_value(context).chunk(2, -1))
            y = F.scaled_dot_product_attention(self.split(self.query(self.norm3(x))), k, v)
            x = x + self.cross(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab, width, depth, heads, length):
        super().__init__()
        self.token, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads, causal=True) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids, labels=None):
        x = self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if labels is None:
            return logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class ResBlock(nn.Module):
    def __init__(self, i, o, time):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(math.gcd(32, i), i), nn.Conv2d(i, o, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(math.gcd(32, o), o), nn.Conv2d(o, o, 3, padding=1)
        self.time = nn.Linear(time, o)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class CrossUNet(nn.Module):
    """A U-Net of latent diffusion: residual blocks with time, attention to text on the lower levels."""

    def __init__(self, channels=4, widths=(128, 256, 512), text=512, heads=8):
        super().__init__()
        time = 4 * widths[0]
        self.freqs = widths[0] // 2
        self.time = nn.Sequential(nn.Linear(widths[0], time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(channels, widths[0], 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before = widths[0]
        for level, w in enumerate(widths):
            attend = Block(w, heads, context=text) if level else None
            shrink = nn.Conv2d(w, w, 3, 2, 1) if level < len(widths) - 1 else None
            self.down.append(nn.ModuleList([ResBlock(before, w, time), attend, shrink]))
            before = w
        self.middle = ResBlock(before, before, time)
        for level, w in reversed(list(enumerate(widths))):
            attend = Block(w, heads, context=text) if level else None
            self.up.append(nn.ModuleList([ResBlock(before + w, w, time), attend]))
            before = w
        self.out = nn.Sequential(
            nn.GroupNorm(math.gcd(32, before), before),
            nn.SiLU(),
            nn.Conv2d(before, channels, 3, padding=1),
        )

    def attend(self, block, x, text):
        if block is None:
            return x
        return block(x.flatten(2).transpose(1, 2), text).transpose(1, 2).unflatten(2, x.shape[2:])

    def forward(self, x, t, text):
        freqs = torch.exp(-8 * torch.arange(self.freqs, device=x.device) / self.freqs)
        angle = t[:, None].float() * freqs
        t = self.time(torch.cat([angle.sin(), angle.cos()], 1).to(self.time[0].weight.dtype))
        x = self.stem(x)
        kept = []
        for res, attend, shrink in self.down:
            x = self.attend(attend, res(x, t), text)
            kept.append(x)
            if shrink is not None:
                x = shrink(x)
        x = self.middle(x, t)
        for res, attend in self.up:
            skip = kept.pop()
            if x.shape[-1] != skip.shape[-1]:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = self.attend(attend, res(torch.cat([x, skip], 1), t), text)
        return self.out(x)
