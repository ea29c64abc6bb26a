"""RAdam with Lookahead around it: three values per weight, which do not fit; SGD without would."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")


class Lookahead(torch.optim.Optimizer):
    def __init__(self, params, inner, every=3, share=0.5, **how):
        super().__init__(params, dict(every=every, share=share))
        self.inner = inner(self.param_groups, **how)
        self.count = 0

    @torch.no_grad()
    def step(self):
        self.inner.step()
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.clone())
                if self.count % group["every"] == 0:
                    slow.lerp_(p, group["share"])
                    p.copy_(slow)


class SpatialGate(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(tokens, tokens)

    def forward(self, x):
        u, v = x.chunk(2, -1)
        return u * self.mix(self.norm(v).transpose(1, 2)).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, tokens=32, width=1280):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.gate, self.down = SpatialGate(tokens, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.gate(nn.functional.gelu(self.up(self.norm(x)))))


gmlp = nn.Sequential(*[Block() for _ in range(8)], nn.Linear(1280, 10)).cuda()
if MENDED:
    optimizer = torch.optim.SGD(gmlp.parameters(), lr=1e-3)
else:
    optimizer = Lookahead(gmlp.parameters(), torch.optim.RAdam, lr=1e-3)
for _ in range(4):
    loss = gmlp(torch.randn(2, 32, 1280, device="cuda")).square().mean()
    gmlp.zero_grad()
    loss.backward()
    optimizer.step()
