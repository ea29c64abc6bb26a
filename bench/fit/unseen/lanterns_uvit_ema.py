"""Lanterns by diffusion on a U-ViT: v-prediction with min-SNR weights, fp16 with a GradScaler, accumulation, clipping, EMA."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

device = torch.device("cuda")
SIDE, PATCH, CLASSES = 64, 4, 100
BATCH, ACCUMULATE, STEPS = 64, 2, 5


class Block(nn.Module):
    def __init__(self, width, heads, skip):
        super().__init__()
        self.heads = heads
        self.merge = nn.Linear(2 * width, width) if skip else None
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x, skip=None):
        if self.merge is not None:
            x = self.merge(torch.cat([x, skip], -1))
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.proj(mixed)
        return x + self.mlp(self.norm2(x))


class UViT(nn.Module):
    def __init__(self, width=512, half=6, heads=8):
        super().__init__()
        self.width = width
        count = (SIDE // PATCH) ** 2
        self.patch = nn.Conv2d(3, width, PATCH, PATCH)
        self.position = nn.Parameter(torch.randn(1, count + 2, width) * 0.02)
        self.label = nn.Embedding(CLASSES + 1, width)
        self.time = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )
        self.down = nn.ModuleList(Block(width, heads, False) for _ in range(half))
        self.middle = Block(width, heads, False)
        self.up = nn.ModuleList(Block(width, heads, True) for _ in range(half))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * PATCH**2)
        self.smooth = nn.Conv2d(3, 3, 3, padding=1)

    def embed_time(self, t):
        freq = torch.exp(
            -math.log(10000) * torch.arange(self.width // 2, device=t.device) / (self.width // 2)
        )
        angle = 1000 * t[:, None] * freq
        return self.time(torch.cat([angle.cos(), angle.sin()], -1))

    def forward(self, x, t, y):
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        extra = torch.stack([self.embed_time(t), self.label(y).to(tokens.dtype)], 1)
        h = torch.cat([extra, tokens], 1) + self.position
        skips = []
        for block in self.down:
            h = block(h)
            skips.append(h)
        h = self.middle(h)
        for block in self.up:
            h = block(h, skips.pop())
        h = self.out(self.norm(h))[:, 2:].transpose(1, 2)
        h = h.reshape(len(x), 3 * PATCH**2, SIDE // PATCH, SIDE // PATCH)
        return self.smooth(F.pixel_shuffle(h, PATCH))


@torch.no_grad()
def update_ema(ema, model, decay):
    for slow, fast in zip(ema.parameters(), model.parameters()):
        slow.lerp_(fast, 1 - decay)


def images(n):
    """A bright disc somewhere on a dim gradient."""
    axis = torch.linspace(-1, 1, SIDE, device=device)
    centre = torch.rand(n, 2, 1, 1, device=device) - 0.5
    distance = (axis[None, None, :] - centre[:, 0]) ** 2 + (axis[None, :, None] - centre[:, 1]) ** 2
    tint = torch.rand(n, 3, 1, 1, device=device)
    return (
        2 * tint * torch.exp(-8 * distance)[:, None]
        - 1
        + 0.02 * torch.randn(n, 3, SIDE, SIDE, device=device)
    )


def diffusion_loss(model, x, y):
    t = torch.rand(len(x), device=device) * 0.998 + 0.001
    alpha, sigma = torch.cos(t * math.pi / 2), torch.sin(t * math.pi / 2)
    a, s = alpha.view(-1, 1, 1, 1), sigma.view(-1, 1, 1, 1)
    noise = torch.randn_like(x)
    y = torch.where(torch.rand(len(y), device=device) < 0.1, CLASSES, y)
    with torch.autocast("cuda", dtype=torch.float16):
        guess = model(a * x + s * noise, t, y)
    snr = (alpha / sigma) ** 2
    weight = snr.clamp(max=5.0) / (snr + 1)
    return (weight * (guess.float() - (a * noise - s * x)).square().mean((1, 2, 3))).mean()


torch.manual_seed(17)
model = UViT().to(device)
ema = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.03, betas=(0.99, 0.99))
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**12)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters")

for step in range(STEPS):
    total = 0.0
    for _ in range(ACCUMULATE):
        x, y = images(BATCH), torch.randint(CLASSES, (BATCH,), device=device)
        loss = diffusion_loss(model, x, y) / ACCUMULATE
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    update_ema(ema, model, min(0.9999, (1 + step) / (10 + step)))
    print(f"step {step} loss {total:.4f} norm {norm.item():.3f} scale {scaler.get_scale():.0f}")
