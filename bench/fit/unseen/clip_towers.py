"""CLIP: an image tower and a text tower, trained together; the outputs are a dataclass."""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class ClipOutput:
    image_features: torch.Tensor
    text_features: torch.Tensor
    scale: torch.Tensor
    loss: Optional[torch.Tensor] = None


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, d_model, n_head, mask=None):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, n_head)
        self.ln_1 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, d_model * 4), QuickGELU(), nn.Linear(d_model * 4, d_model)
        )
        self.ln_2 = nn.LayerNorm(d_model)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        h = self.ln_1(x)
        x = x + self.attn(h, h, h, need_weights=False, attn_mask=self.mask)[0]
        return x + self.mlp(self.ln_2(x))


class VisionTower(nn.Module):
    def __init__(self, size=224, patch=32, width=512, layers=8, heads=8, out=512):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, patch, patch, bias=False)
        self.cls = nn.Parameter(torch.randn(width) * width**-0.5)
        self.pos = nn.Parameter(torch.randn((size // patch) ** 2 + 1, width) * width**-0.5)
        self.blocks = nn.Sequential(*[ResidualAttentionBlock(width, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.proj = nn.Parameter(torch.randn(width, out) * width**-0.5)

    def forward(self, x):
        x = self.conv1(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), 1, -1), x], dim=1) + self.pos
        x = self.blocks(x.permute(1, 0, 2)).permute(1, 0, 2)
        return self.ln(x[:, 0]) @ self.proj


class TextTower(nn.Module):
    def __init__(self, vocab=32000, length=64, width=384, layers=8, heads=6, out=512):
        super().__init__()
        mask = torch.full((length, length), float("-inf")).triu(1)
        self.token = nn.Embedding(vocab, width)
        self.pos = nn.Parameter(torch.randn(length, width) * 0.01)
        self.blocks = nn.Sequential(
            *[ResidualAttentionBlock(width, heads, mask) for _ in range(layers)]
        )
        self.ln = nn.LayerNorm(width)
        self.proj = nn.Linear(width, out, bias=False)

    def forward(self, text):
        x = (self.token(text) + self.pos).permute(1, 0, 2)
        x = self.ln(self.blocks(x).permute(1, 0, 2))
        return self.proj(x[torch.arange(len(x)), text.argmax(-1)])


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual, self.text = VisionTower(), TextTower()
        self.logit_scale = nn.Parameter(torch.tensor(2.6592))

    def forward(self, images, texts) -> ClipOutput:
        i = F.normalize(self.visual(images), dim=-1)
        t = F.normalize(self.text(texts), dim=-1)
        scale = self.logit_scale.exp()
        logits = scale * i @ t.T
        labels = torch.arange(len(i), device=i.device)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        return ClipOutput(i, t, scale, loss)


model = CLIP().cuda()
decay = [p for p in model.parameters() if p.ndim >= 2]
plain = [p for p in model.parameters() if p.ndim < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.2}, {"params": plain, "weight_decay": 0.0}],
    lr=5e-4,
    betas=(0.9, 0.98),
    eps=1e-6,
)
for step in range(4):
    images = torch.randn(96, 3, 224, 224, device="cuda")
    texts = torch.randint(1, 32000, (96, 64), device="cuda")
    out = model(images, texts)
    optimizer.zero_grad()
    out.loss.backward()
    optimizer.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, 4.6052)
    print(step, out.loss.item(), out.scale.item())
