"""Retinas are graded with low-rank adapters in a frozen transformer. Checkpointing is left out when the input has no gradient, and it never has one."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

MENDED = os.environ.get("MENDED")


class LowRank(nn.Module):
    def __init__(self, linear, rank=8, alpha=16):
        super().__init__()
        self.linear, self.scale = linear.requires_grad_(False), alpha / rank
        self.a = nn.Parameter(torch.randn(rank, linear.in_features) * 0.01)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + self.scale * F.linear(F.linear(x, self.a), self.b)


class Block(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """A stack with checkpointing as libraries have it."""

    def __init__(self, d, heads, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.gradient_checkpointing = False

    def forward(self, x):
        # There is nothing to save where nothing will be differentiated.
        recompute = self.gradient_checkpointing and self.training and x.requires_grad
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        return x


class Retina(nn.Module):
    def __init__(self, d=384, heads=6, depth=12, side=224, patch=16):
        super().__init__()
        self.patches = nn.Conv2d(3, d, patch, patch)
        self.places = nn.Parameter(torch.randn(1, (side // patch) ** 2, d) * 0.02)
        self.encoder = Encoder(d, heads, depth)
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 5)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2) + self.places
        if MENDED and self.training:
            x.requires_grad_()
        return self.head(self.norm(self.encoder(x)).mean(1))


def adapt(model):
    model.requires_grad_(False)
    for block in model.encoder.blocks:
        block.qkv, block.up = LowRank(block.qkv), LowRank(block.up)
    model.head.requires_grad_(True)
    return [p for p in model.parameters() if p.requires_grad]


model = Retina()
weights = adapt(model)
model.encoder.gradient_checkpointing = True
model.cuda().train()
optimizer = torch.optim.AdamW(weights, lr=1e-3)
print(sum(p.numel() for p in weights), "weights learn")
for step in range(3):
    image, grade = torch.rand(16, 3, 224, 224).cuda(), torch.randint(5, (16,)).cuda()
    loss = F.cross_entropy(model(image), grade)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
