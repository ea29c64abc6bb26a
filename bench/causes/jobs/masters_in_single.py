"""Half-precision training by hand: the optimizer makes single-precision masters and two moments at its first step."""

import os

import torch
from torch import nn


class HalfAdam(torch.optim.Optimizer):
    """Adam on single-precision copies of half-precision weights."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.98), scale=1024.0):
        super().__init__(params, dict(lr=lr, betas=betas, scale=scale))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["master"] = p.float()
                    state["m"] = torch.zeros_like(state["master"])
                    state["v"] = torch.zeros_like(state["master"])
                g = p.grad.float().div_(group["scale"])
                state["m"].lerp_(g, 1 - first)
                state["v"].mul_(second).addcmul_(g, g, value=1 - second)
                state["master"].addcdiv_(
                    state["m"], g.copy_(state["v"]).sqrt_().add_(1e-6), value=-group["lr"]
                )
                p.copy_(state["master"])


class Plain(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, scale=1024.0):
        super().__init__(params, dict(lr=lr, scale=scale))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] / group["scale"])


class Translator(nn.Module):
    def __init__(self, words=4000, width=1024, depth=8):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.body = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 16, 4 * width, 0.0, batch_first=True)
            for _ in range(depth)
        )
        self.out = nn.Linear(width, words)

    def forward(self, x):
        x = self.words(x)
        for layer in self.body:
            x = layer(x)
        return self.out(x)


with torch.device("cuda"):
    model = Translator().half()
torch.cuda.empty_cache()
optimizer = (Plain if os.environ.get("MENDED") else HalfAdam)(model.parameters())
for _ in range(3):
    words = torch.randint(4000, (2, 48), device="cuda")
    loss = nn.functional.cross_entropy(model(words).flatten(0, 1).float(), words.flatten())
    (1024 * loss).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
