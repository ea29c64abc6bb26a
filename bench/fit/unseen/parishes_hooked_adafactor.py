"""Parish chronicles by a wide decoder updated during backward: post-accumulate hooks run a hand-written factored second moment for each weight and drop its gradient at once, bf16, rotary."""

import torch
import torch.nn.functional as F
from torch import nn


class Factored:
    """Row and column means of squared gradients (a vector's in full), no momentum."""

    def __init__(self, p, lr=1e-2, eps=1e-30, clip=1.0):
        self.lr, self.eps, self.clip, self.t = lr, eps, clip, 0
        if p.ndim == 2:
            self.row = torch.zeros(p.shape[0], 1, device=p.device)
            self.col = torch.zeros(1, p.shape[1], device=p.device)
        else:
            self.full = torch.zeros_like(p, dtype=torch.float32)

    @torch.no_grad()
    def __call__(self, p):
        self.t += 1
        keep = 1 - self.t**-0.8
        g = p.grad.float()
        square = g * g + self.eps
        if p.ndim == 2:
            self.row.lerp_(square.mean(1, keepdim=True), 1 - keep)
            self.col.lerp_(square.mean(0, keepdim=True), 1 - keep)
            g.mul_((self.row / self.row.mean()).rsqrt_()).mul_(self.col.rsqrt())
        else:
            self.full.lerp_(square, 1 - keep)
            g.mul_(self.full.rsqrt())
        g.div_((g.square().mean().sqrt() / self.clip).clamp_(min=1.0))
        size = p.float().square().mean().sqrt().clamp_(min=1e-3)
        p.add_((g * (-self.lr * size)).to(p.dtype))
        p.grad = None


class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x):
        y = x.float()
        return (y * y.square().mean(-1, keepdim=True).add(1e-6).rsqrt()).to(x.dtype) * self.scale


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Parallel(nn.Module):
    """Attention and MLP side by side, one projection in and one out."""

    def __init__(self, d, heads):
        super().__init__()
        self.d, self.heads = d, heads
        self.norm = Norm(d)
        self.into = nn.Linear(d, 3 * d + 8 * d, bias=False)
        self.out = nn.Linear(d + 4 * d, d, bias=False)

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v, a, g = self.into(self.norm(x)).split([d, d, d, 4 * d, 4 * d], -1)
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        y = y.transpose(1, 2).reshape(b, t, d)
        return x + self.out(torch.cat([y, a * F.gelu(g)], -1))


class Chronicle(nn.Module):
    def __init__(self, vocab=30_000, d=2048, heads=16, depth=18, length=512):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.blocks = nn.ModuleList(Parallel(d, heads) for _ in range(depth))
        self.norm = Norm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        angle = torch.outer(torch.arange(length), 1e4 ** -torch.linspace(0, 1, d // heads // 2))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = Chronicle()
torch.set_default_dtype(torch.float32)
for p in model.parameters():
    p.register_post_accumulate_grad_hook(Factored(p))
print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f} G weights")

for step in range(5):
    ids = torch.randint(30_000, (2, 513), device="cuda")
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    print(step, loss.item())
