"""Poems letter by letter: GPT with an own Adan (three moments), gradients accumulated over three micro-batches."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Adan(torch.optim.Optimizer):
    """Adaptive Nesterov momentum (Xie et al., 2022)."""

    def __init__(self, params, lr=1e-3, betas=(0.98, 0.92, 0.99), eps=1e-8, weight_decay=0.02):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2, b3 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g, s = p.grad, self.state[p]
                if not s:
                    s["step"] = 0
                    s["m"], s["v"], s["n"] = (
                        torch.zeros_like(p),
                        torch.zeros_like(p),
                        torch.zeros_like(p),
                    )
                    s["prev"] = g.clone()
                s["step"] += 1
                diff = g - s["prev"]
                s["m"].lerp_(g, 1 - b1)
                s["v"].lerp_(diff, 1 - b2)
                update = g + b2 * diff
                s["n"].mul_(b3).addcmul_(update, update, value=1 - b3)
                c1, c2, c3 = 1 - b1 ** s["step"], 1 - b2 ** s["step"], 1 - b3 ** s["step"]
                denom = (s["n"] / c3).sqrt_().add_(group["eps"])
                p.addcdiv_(s["m"] / c1 + b2 * s["v"] / c2, denom, value=-group["lr"])
                p.div_(1 + group["lr"] * group["weight_decay"])
                s["prev"].copy_(g)


class CausalSelfAttention(nn.Module):
    def __init__(self, d, heads, block):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.drop = nn.Dropout(0.1)
        self.register_buffer(
            "mask", torch.tril(torch.ones(block, block)).view(1, 1, block, block), persistent=False
        )

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            y.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for y in self.c_attn(x).split(d, 2)
        )
        att = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        att = att.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        att = self.drop(F.softmax(att, dim=-1))
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(b, t, d))


class Block(nn.Module):
    def __init__(self, d, heads, block):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = CausalSelfAttention(d, heads, block)
        self.mlp = nn.Sequential(
            nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(0.1)
        )

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab=128, d=768, heads=12, layers=10, block=512):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, d), nn.Embedding(block, d)
        self.h = nn.Sequential(*[Block(d, heads, block) for _ in range(layers)])
        self.ln_f, self.lm_head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(data, n, block):
    ix = torch.randint(len(data) - block - 1, (n,))
    x = torch.stack([data[i : i + block] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block] for i in ix])
    return x.pin_memory().cuda(non_blocking=True), y.pin_memory().cuda(non_blocking=True)


def main(steps=6, micro=3, n=12, block=512):
    data = torch.randint(0, 128, (200_000,))
    model = GPT(block=block).cuda()
    opt = Adan(model.parameters(), lr=1e-3)
    for step in range(steps):
        total = 0.0
        for _ in range(micro):
            loss = model(*get_batch(data, n, block)) / micro
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        print(f"step {step}: {total:.4f}")


if __name__ == "__main__":
    main()
