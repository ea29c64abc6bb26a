"""Cloud cover in the next hour from all-sky camera images, with fused attention."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")
torch.backends.cuda.enable_flash_sdp(True)
torch.backends.cuda.enable_mem_efficient_sdp(True)


class FusedAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        if MENDED:
            q, k, v = (F.pad(t, (0, -self.size % 8)) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, scale=self.size**-0.5)[..., : self.size]
        return self.out(y.transpose(1, 2).reshape(b, n, c))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = FusedAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 480), nn.GELU(), nn.Linear(480, width))

    def forward(self, x):
        x = x + self.attention(self.a(x))
        return x + self.mlp(self.b(x))


class SkyNet(nn.Module):
    def __init__(self, width=240, heads=8, depth=6):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.place = nn.Parameter(torch.zeros(1, 1024, width))
        self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(depth)])
        self.head = nn.Linear(width, 1)

    def forward(self, sky):
        x = self.patches(sky).flatten(2).transpose(1, 2) + self.place
        return self.head(self.layers(x).mean(1)).sigmoid().squeeze(1)


model = SkyNet().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
for _ in range(3):
    sky, cover = torch.rand(6, 3, 256, 256).cuda(), torch.rand(6).cuda()
    loss = F.mse_loss(model(sky), cover)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
