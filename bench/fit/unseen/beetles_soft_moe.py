"""Beetles told apart by a vision transformer with soft mixtures of experts: slots by softmax over tokens, experts as one batched product, fused AdamW, OneCycle, fp16."""

import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class SoftMoE(nn.Module):
    def __init__(self, dim, experts, slots, hidden):
        super().__init__()
        self.experts, self.slots = experts, slots
        self.phi = nn.Parameter(torch.randn(dim, experts * slots) * dim**-0.5)
        self.scale = nn.Parameter(torch.ones(()))
        self.w1 = nn.Parameter(torch.randn(experts, dim, hidden) * dim**-0.5)
        self.b1 = nn.Parameter(torch.zeros(experts, 1, hidden))
        self.w2 = nn.Parameter(torch.randn(experts, hidden, dim) * hidden**-0.5)
        self.b2 = nn.Parameter(torch.zeros(experts, 1, dim))

    def forward(self, x):
        b, n, d = x.shape
        logits = F.normalize(x, dim=-1) @ (self.scale * F.normalize(self.phi, dim=0))
        dispatch, combine = logits.softmax(1), logits.softmax(2)
        slots = torch.einsum("bnd,bns->bsd", x, dispatch)
        slots = slots.view(b, self.experts, self.slots, d).transpose(0, 1).flatten(1, 2)
        h = F.gelu(torch.bmm(slots, self.w1.to(slots.dtype)) + self.b1)
        h = torch.bmm(h.to(slots.dtype), self.w2.to(slots.dtype)) + self.b2
        h = h.view(self.experts, b, self.slots, d).transpose(0, 1).flatten(1, 2)
        return torch.einsum("bsd,bns->bnd", h.to(combine.dtype), combine)


class MLP(nn.Sequential):
    def __init__(self, dim, hidden):
        super().__init__(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))


class Layer(nn.Module):
    def __init__(self, dim, heads, feed):
        super().__init__()
        self.attn_norm, self.feed_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.feed = feed

    def forward(self, x):
        h = self.attn_norm(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.feed(self.feed_norm(x))


class BeetleNet(nn.Module):
    def __init__(self, classes=350, dim=512, depth=8, heads=8, patch=16, size=224):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, patch, patch)
        n = (size // patch) ** 2
        self.pos = nn.Parameter(torch.randn(1, n, dim) * 0.02)
        # The second half of the layers have experts.
        self.layers = nn.ModuleList(
            [
                Layer(
                    dim,
                    heads,
                    SoftMoE(dim, 32, n // 32, 2 * dim) if i >= depth // 2 else MLP(dim, 4 * dim),
                )
                for i in range(depth)
            ]
        )
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2) + self.pos
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def main():
    torch.manual_seed(350)
    model = BeetleNet().cuda()
    print(sum(p.numel() for p in model.parameters()) // 10**6, "M parameters")
    no_wd = [p for n, p in model.named_parameters() if p.ndim < 2 or n == "pos"]
    wd = [p for n, p in model.named_parameters() if not (p.ndim < 2 or n == "pos")]
    optim = torch.optim.AdamW(
        [{"params": wd, "weight_decay": 0.1}, {"params": no_wd, "weight_decay": 0}],
        lr=1e-3,
        fused=True,
    )
    onecycle = torch.optim.lr_scheduler.OneCycleLR(optim, max_lr=1e-3, total_steps=50)
    scaler = torch.amp.GradScaler()
    started = time.time()
    for i in range(5):
        img = torch.randn(48, 3, 224, 224).cuda()
        label = torch.randint(0, 350, (48,)).cuda()
        with torch.autocast("cuda", torch.float16):
            loss = F.cross_entropy(model(img), label, label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.unscale_(optim)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optim)
        scaler.update()
        onecycle.step()
        optim.zero_grad()
        print(i, loss.item(), norm.item())
    print(f"{time.time() - started:.1f} s")


if __name__ == "__main__":
    main()
