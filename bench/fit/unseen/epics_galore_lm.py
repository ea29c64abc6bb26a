"""Epics by a large language model with GaLore written by hand: gradients projected to rank 64 by SVD now and then, Adam in the low rank, no torch.optim."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, LAYERS, HEADS, VOCAB, CONTEXT = 1280, 14, 16, 32_000, 256


class Rms(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.scale, 1e-5)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.m = Rms(WIDTH), Rms(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate = nn.Linear(WIDTH, 3456, bias=False)
        self.up = nn.Linear(WIDTH, 3456, bias=False)
        self.down = nn.Linear(3456, WIDTH, bias=False)

    def forward(self, x):
        y = self.a(x)
        q, k, v = (
            f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        x = x + self.o(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )
        y = self.m(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Bard(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(VOCAB, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.body = nn.Sequential(*[Decoder() for _ in range(LAYERS)], Rms(WIDTH))

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        return self.body(x) @ self.words.weight.t()


class GaLore:
    def __init__(self, named, lr=1e-2, rank=64, every=3, scale=0.25):
        self.named = list(named)
        self.lr, self.rank, self.every, self.scale = lr, rank, every, scale
        self.memory, self.t = {}, 0

    def projector(self, g):
        u, _, v = torch.svd_lowrank(g.float(), q=self.rank, niter=1)
        return u if g.shape[0] <= g.shape[1] else v

    @torch.no_grad()
    def step(self):
        self.t += 1
        for name, p in self.named:
            g = p.grad
            low = p.ndim == 2 and "body" in name
            mem = self.memory.setdefault(name, {})
            if low:
                if self.t % self.every == 1:
                    mem["P"] = self.projector(g)
                left = p.shape[0] <= p.shape[1]
                g = mem["P"].t() @ g if left else g @ mem["P"]
            if "m" not in mem:
                mem["m"], mem["v"] = torch.zeros_like(g), torch.zeros_like(g)
            m, v = mem["m"], mem["v"]
            m.lerp_(g, 0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            update = m / (1 - 0.9**self.t) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-8)
            if low:
                update = self.scale * (mem["P"] @ update if left else update @ mem["P"].t())
            p.add_(update, alpha=-self.lr)
            p.grad = None


torch.set_default_device("cuda")
model = Bard()
for p in model.parameters():
    if p.ndim == 2:
        nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS))
optimizer = GaLore(model.named_parameters())
for step in range(5):
    ids = torch.randint(0, VOCAB, (6, CONTEXT + 1))
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    print(step, float(loss))
