"""A small and fast generator of programs. Room for keys and values is made before the first word, for the longest text that the model could read."""

import os

import torch
import torch.nn.functional as F
from torch import nn

LENGTH = 1024 if os.environ.get("MENDED") else 16384
BATCH = 12


class KVCache:
    def __init__(self, batch, length, heads, d):
        self.k = torch.zeros(batch, heads, length, d, dtype=torch.bfloat16, device="cuda")
        self.v = torch.zeros_like(self.k)

    def update(self, places, k, v):
        self.k[:, :, places], self.v[:, :, places] = k, v
        return self.k, self.v


class Layer(nn.Module):
    def __init__(self, d, heads, groups):
        super().__init__()
        self.heads, self.groups, self.each = heads, groups, d // heads
        self.norm, self.after = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q = nn.Linear(d, d, bias=False)
        self.kv = nn.Linear(d, 2 * groups * self.each, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 3 * d, bias=False), nn.Linear(3 * d, d, bias=False)
        self.cache = None

    def forward(self, x, places, mask):
        b, n, d = x.shape
        h = self.norm(x)
        q = self.q(h).view(b, n, self.heads, self.each).transpose(1, 2)
        k, v = self.kv(h).view(b, n, 2, self.groups, self.each).permute(2, 0, 3, 1, 4)
        k, v = self.cache.update(places, k, v)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
        x = x + self.out(seen.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.silu(self.up(self.after(x))))


class Coder(nn.Module):
    def __init__(self, words=6000, d=512, layers=8, heads=8, groups=4):
        super().__init__()
        self.embed = nn.Embedding(words, d)
        self.layers = nn.ModuleList(Layer(d, heads, groups) for _ in range(layers))

    def setup_caches(self, batch, length):
        for layer in self.layers:
            layer.cache = KVCache(batch, length, layer.groups, layer.each)
        self.mask = torch.ones(length, length, dtype=torch.bool, device="cuda").tril_()

    def forward(self, ids, places):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, places, self.mask[places])
        return x[:, -1] @ self.embed.weight.T


@torch.inference_mode()
def generate(model, prompt, words):
    model.setup_caches(len(prompt), LENGTH)
    places = torch.arange(prompt.shape[1], device="cuda")
    ids, said = prompt, []
    for _ in range(words):
        ids = model(ids, places).argmax(1, keepdim=True)
        places = places[-1:] + 1
        said.append(ids)
    return torch.cat(said, 1)


coder = Coder().bfloat16().cuda().eval()
print(generate(coder, torch.randint(0, 6000, (BATCH, 32), device="cuda"), 5).shape)
