"""Parish registers by a wide decoder of 400 million weights: Lion by hand with per-tensor loops, embeddings tied, ALiBi, blocks compiled in place, bf16 autocast."""

import math

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, DIM, HEADS, LAYERS, LENGTH = 50304, 1536, 12, 8, 384


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.1):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(m * b1 + p.grad * (1 - b1)), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


def alibi():
    """HEADS x LENGTH x LENGTH: a slope for each head, minus infinity ahead."""
    slope = torch.tensor([2 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)])
    distance = torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None]
    bias = slope[:, None, None] * distance
    return bias.masked_fill(distance > 0, -math.inf)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(DIM, bias=False)
        self.fused = nn.Linear(DIM, 3 * DIM + 4 * DIM, bias=False)  # attention and MLP in parallel
        self.out = nn.Linear(DIM + 4 * DIM, DIM, bias=False)

    def forward(self, x, bias):
        q, k, v, h = self.fused(self.ln(x)).split([DIM, DIM, DIM, 4 * DIM], -1)
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return x + self.out(torch.cat([a.transpose(1, 2).flatten(2), F.gelu(h)], -1))


class Register(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln = nn.LayerNorm(DIM)
        self.register_buffer("bias", alibi(), persistent=False)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x, self.bias)
        return F.linear(self.ln(x), self.words.weight)


device = torch.device("cuda")
with device:
    model = Register()
for block in model.blocks:
    block.compile()  # alike, so one compilation serves all
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million weights")
optimizer = Lion(model.parameters())
for step in range(4):
    for micro in range(2):
        ids = torch.randint(0, VOCAB, (4, LENGTH + 1), device=device)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) / 2
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(step, 2 * loss.item())
