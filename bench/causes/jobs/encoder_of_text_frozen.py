"""Pictures are made from words. The encoder of text is not trained, and nobody told autograd."""

import os
from contextlib import nullcontext

import torch
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

frozen = torch.no_grad if os.environ.get("MENDED") else nullcontext
config = CLIPTextConfig(
    vocab_size=10_000,
    hidden_size=512,
    intermediate_size=2048,
    num_hidden_layers=8,
    num_attention_heads=8,
)
with torch.device("cuda"):
    text = CLIPTextModel(config).train()


class Painter(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.words = nn.Linear(512, width)
        self.stem, self.out = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.mid = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, noisy, words):
        x = self.stem(noisy) + self.words(words.mean(1))[..., None, None]
        return self.out(nn.functional.silu(self.mid(nn.functional.silu(x))))


painter = Painter().cuda()
optimizer = torch.optim.AdamW(painter.parameters(), 1e-4)
for _ in range(3):
    ids = torch.randint(0, 10_000, (64, 77), device="cuda")
    with frozen():
        words = text(input_ids=ids).last_hidden_state
    noise = torch.randn(64, 4, 32, 32, device="cuda")
    loss = nn.functional.mse_loss(painter(noise, words), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
