"""A speech encoder in autocast, trained on ten minutes of sound at a time."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, LABELS = 768, 12, 128


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return 0.5 * self.outer(F.silu(self.inner(self.norm(x))))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.attention, self.second = FeedForward(), Attention(), FeedForward()

    def forward(self, x):
        x = x + self.first(x)
        x = x + self.attention(x)
        return x + self.second(x)


class Encoder(nn.Module):
    def __init__(self, blocks=6):
        super().__init__()
        self.front = nn.Conv1d(80, WIDTH, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, LABELS)

    def forward(self, mel):
        x = F.gelu(self.front(mel)).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
model = Encoder().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(4):
    mel = torch.randn(1, 80, 60000, device="cuda")
    labels = torch.randint(LABELS, (30000,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(mel)[0], labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print("done")
