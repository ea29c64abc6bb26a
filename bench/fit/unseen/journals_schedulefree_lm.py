"""A language model of travel journals with schedule-free AdamW, written here: two points instead of a learning-rate schedule."""

import os

import torch
import torch.nn.functional as F
from torch import nn

STEPS = int(os.environ.get("JOB_STEPS", "5"))
VOCAB, CONTEXT, BATCH, ROWS = 50304, 512, 3, 1


class ScheduleFreeAdamW(torch.optim.Optimizer):
    """The parameters hold y while training and x for evaluation; z is in the state."""

    def __init__(self, params, lr=2.5e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, warmup=4):
        super().__init__(
            params,
            dict(
                lr=lr,
                betas=betas,
                eps=eps,
                weight_decay=weight_decay,
                warmup=warmup,
                k=0,
                sum=0.0,
                training=True,
            ),
        )

    @torch.no_grad()
    def _swap(self, training):
        for group in self.param_groups:
            if group["training"] == training:
                continue
            b1 = group["betas"][0]
            for p in group["params"]:
                if "z" in self.state[p]:
                    p.lerp_(self.state[p]["z"], 1 - b1 if training else 1 - 1 / b1)
            group["training"] = training

    def train(self):
        self._swap(True)

    def eval(self):
        self._swap(False)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            k = group["k"] + 1
            lr = group["lr"] * min(1.0, k / group["warmup"]) * (1 - b2**k) ** 0.5
            group["sum"] += lr**2
            c = lr**2 / group["sum"]
            ps = [p for p in group["params"] if p.grad is not None]
            for p in ps:
                if not self.state[p]:
                    self.state[p]["z"] = p.clone()
                    self.state[p]["v"] = torch.zeros_like(p)
            grads = [p.grad for p in ps]
            zs, vs = [self.state[p]["z"] for p in ps], [self.state[p]["v"] for p in ps]
            torch._foreach_mul_(vs, b2)
            torch._foreach_addcmul_(vs, grads, grads, 1 - b2)
            for p, z, v, g in zip(ps, zs, vs, grads):
                g.div_(v.sqrt().add_(group["eps"]))
                if p.ndim > 1:
                    g.add_(p, alpha=group["weight_decay"])
                p.lerp_(z, c)
                p.add_(g, alpha=lr * (b1 * (1 - c) - 1))
                z.sub_(g, alpha=lr)
            group["k"] = k


class RMS(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight)


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = RMS(d), RMS(d)
        self.qkv, self.o = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = (
            nn.Linear(d, 8 * d // 3 * 2, bias=False),
            nn.Linear(8 * d // 3, d, bias=False),
        )

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (
            torch.cat(
                [u[..., ::2] * cos - u[..., 1::2] * sin, u[..., ::2] * sin + u[..., 1::2] * cos], -1
            )
            for u in (q, k)
        )
        a = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        gate, value = self.up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


class Journal(nn.Module):
    def __init__(self, d=1152, depth=14, heads=9):
        super().__init__()
        self.words = nn.Embedding(VOCAB, d)
        self.layers = nn.ModuleList(Layer(d, heads) for _ in range(depth))
        self.norm = RMS(d)
        nn.init.normal_(self.words.weight, std=0.02)
        half = d // heads // 2
        angle = torch.arange(CONTEXT)[:, None] * 10000 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, ids, rows=None):
        x = self.words(ids[:, :-1])
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        x = self.norm(x)
        # the head in parts, for its logits are large
        losses = [
            F.cross_entropy(
                (a @ self.words.weight.T).flatten(0, 1).float(), b.flatten(), reduction="sum"
            )
            for a, b in zip(x.split(ROWS), ids[:, 1:].split(ROWS))
        ]
        return sum(losses) / ids[:, 1:].numel()


def pages(generator):
    """Walks through the vocabulary, so that a next word depends on the word before."""
    jump = torch.randint(0, 64, (BATCH, CONTEXT + 1), generator=generator)
    return (jump.cumsum(1) + torch.randint(VOCAB, (BATCH, 1), generator=generator)) % VOCAB


torch.manual_seed(30)
generator = torch.Generator().manual_seed(30)
with torch.device("cuda"):
    model = Journal()
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M parameters")
optimizer = ScheduleFreeAdamW(model.parameters())
for step in range(STEPS):
    model.train()
    optimizer.train()
    ids = pages(generator).to("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.3f} norm {norm.item():.2f}")
    if (step + 1) % 4 == 0:
        model.eval()
        optimizer.eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            print(f"  held out {model(pages(generator).to('cuda')).item():.3f}")
