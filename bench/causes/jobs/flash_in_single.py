"""DNA in windows of four thousand letters. Flash attention is switched on, and knows half precision only."""

import os

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

MENDED = os.environ.get("MENDED")

# Nothing but flash, so that nothing slow is taken by mistake. (Math is what remains where nothing else can.)
torch.backends.cuda.enable_flash_sdp(True)
torch.backends.cuda.enable_mem_efficient_sdp(False)
torch.backends.cuda.enable_cudnn_sdp(False)


class FlashBlock(nn.Module):
    def __init__(self, width=192, heads=6):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)  # fmt: skip
        self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))  # fmt: skip

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(b, n, c))
        return x + self.feed(x)


class Genome(nn.Module):
    def __init__(self, width=192, depth=6):
        super().__init__()
        self.letters, self.places = nn.Embedding(5, width), nn.Embedding(4096, width)
        self.blocks = nn.Sequential(*[FlashBlock(width) for _ in range(depth)])
        self.guess = nn.Linear(width, 5)

    def forward(self, dna):
        x = self.letters(dna) + self.places(torch.arange(dna.shape[1], device=dna.device))
        return self.guess(self.blocks(x))


model = Genome().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95))
for step in range(3):
    dna = torch.randint(0, 4, (1, 4096), device="cuda")
    masked = dna.masked_fill(torch.rand(1, 4096, device="cuda") < 0.15, 4)
    with torch.autocast("cuda", torch.bfloat16, enabled=bool(MENDED)):
        loss = cross_entropy(model(masked).flatten(0, 1), dna.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
