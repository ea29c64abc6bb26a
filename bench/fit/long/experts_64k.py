"""A mixture of experts in fp32 over 65,536 rows: each goes to the expert that a router chooses."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, WIDTH, EXPERTS = 65536, 512, 4


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 8 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        value, gate = self.up(x).chunk(2, dim=-1)
        return self.down(value * F.gelu(gate))


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x):
        y = self.norm(x)
        # As many rows for each, those that it is surest of.
        weights = self.router(y).softmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            weight, rows = weights[:, number].topk(ROWS // EXPERTS)
            out = out.index_add(0, rows, expert(y[rows]) * weight[:, None])
        return x + out


class Table(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.stem = nn.Linear(64, WIDTH)
        self.layers = nn.ModuleList(Mixture() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


torch.manual_seed(0)
model = Table().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    x = torch.randn(ROWS, 64, device="cuda")
    loss = (model(x) - x[:, :1].sin()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
