"""A robot's policy is a transformer over all that it did and saw; its cache was meant to have a window, but has none."""

import os

import torch
from torch import nn
from torch.nn import functional as F

WINDOW = 48 if os.environ.get("MENDED") else None


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )

    def forward(self, x, memory):
        b, n, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if memory is not None:
            k, v = torch.cat([memory[0], k], 2), torch.cat([memory[1], v], 2)
        if WINDOW:
            k, v = k[:, :, -WINDOW:], v[:, :, -WINDOW:]
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w))
        return x + self.mlp(x), (k, v)


class Policy(nn.Module):
    def __init__(self, sees=39, moves=8, width=512, depth=4):
        super().__init__()
        self.see, self.move, self.hope = (
            nn.Linear(sees, width),
            nn.Linear(moves, width),
            nn.Linear(1, width),
        )
        self.layers = nn.ModuleList(Layer(width, 8) for _ in range(depth))
        self.act = nn.Linear(width, moves)

    def forward(self, hope, seen, moved, memory):
        x = torch.stack([self.hope(hope), self.see(seen), self.move(moved)], 1)
        for n, layer in enumerate(self.layers):
            x, memory[n] = layer(x, memory[n])
        return self.act(x[:, 1]).tanh()


class Arms:
    """Simulated arms, many at once."""

    def __init__(self, count):
        self.count = count

    def reset(self):
        return torch.randn(self.count, 39, device="cuda")

    def step(self, moves):
        return torch.randn(self.count, 39, device="cuda"), torch.rand(self.count, 1, device="cuda")


@torch.inference_mode()
def episode(policy, arms, steps=130):
    seen, moved = arms.reset(), torch.zeros(arms.count, 8, device="cuda")
    hope, memory = torch.full((arms.count, 1), 9.0, device="cuda"), [None] * len(policy.layers)
    for _ in range(steps):
        moved = policy(hope, seen, moved, memory)
        seen, reward = arms.step(moved)
        hope = hope - reward
    return hope.mean().item()


print(episode(Policy().cuda().eval(), Arms(256)))
