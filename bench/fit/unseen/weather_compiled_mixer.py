"""Weather from weather: an MLP-mixer under torch.compile, bf16 autocast, fused AdamW, maps made on the GPU."""

import torch
from torch import nn


class Mix(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.t = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.c = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.t(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.c(self.n2(x))


class Mixer(nn.Module):
    def __init__(self, fields=20, size=128, patch=8, dim=512, depth=4):
        super().__init__()
        self.patch = nn.Conv2d(fields, dim, patch, patch)
        self.blocks = nn.Sequential(*[Mix((size // patch) ** 2, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, fields * patch * patch)

    def forward(self, x):
        return self.head(self.blocks(self.patch(x).flatten(2).transpose(1, 2)))


torch.set_float32_matmul_precision("high")
raw = Mixer().cuda()
model = torch.compile(raw)
opt = torch.optim.AdamW(raw.parameters(), 1e-3, fused=True)
for step in range(6):
    x = torch.randn(128, 20, 128, 128, device="cuda")
    y = torch.randn(128, 256, 20 * 64, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = (model(x).float() - y).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
    print(step, loss.item())
