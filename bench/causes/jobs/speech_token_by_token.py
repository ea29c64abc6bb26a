"""Speech is written token by token with an encoder and a decoder; a class of its own keeps what each layer has seen."""

import os

import torch
from torch import nn
from torch.nn import functional as F

AT_ONCE = 8 if os.environ.get("MENDED") else 160


class Cache:
    """Keys and values by layer."""

    def __init__(self):
        self.store = {}

    def grow(self, layer, k, v):
        if layer in self.store:
            old_k, old_v = self.store[layer]
            k, v = torch.cat((old_k, k), 2), torch.cat((old_v, v), 2)
        self.store[layer] = k, v
        return k, v


class Layer(nn.Module):
    def __init__(self, number, width, heads=8):
        super().__init__()
        self.number, self.heads = number, heads
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q, self.o2 = nn.Linear(width, width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, sound, cache):
        q, k, v = map(self.split, self.qkv(x).chunk(3, -1))
        k, v = cache.grow(self.number, k, v)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        s = self.split(sound)
        y = F.scaled_dot_product_attention(self.split(self.q(x)), s, s)
        x = x + self.o2(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Decoder(nn.Module):
    def __init__(self, width=512, depth=8, words=2000):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(n, width) for n in range(depth))

    def forward(self, ids, sound, cache):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x, sound, cache)
        return (x[:, -1] @ self.words.weight.T).argmax(-1, keepdim=True)


decoder = Decoder().cuda().eval()
with torch.no_grad():
    sound, cache = torch.randn(AT_ONCE, 50, 512, device="cuda"), Cache()
    ids = torch.zeros(AT_ONCE, 1, dtype=torch.long, device="cuda")
    for _ in range(200):
        ids = decoder(ids, sound, cache)
