from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class Config:
    vocab: int = 8192
    width: int = 384
    depth: int = 6
    heads: int = 6
    length: int = 256
    batch: int = 16
    lr: float = 3e-4
    max_iters: int = 6
    device: str = "cuda"


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.ln1, self.ln2 = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.qkv = nn.Linear(c.width, 3 * c.width)
        self.proj = nn.Linear(c.width, c.width)
        self.mlp = nn.Sequential(
            nn.Linear(c.width, 4 * c.width), nn.GELU(), nn.Linear(4 * c.width, c.width)
        )

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.c.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.proj(y)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok, self.pos = nn.Embedding(c.vocab, c.width), nn.Embedding(c.length, c.width)
        self.h = nn.ModuleList([Block(c) for _ in range(c.depth)])
        self.ln = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, c.vocab, bias=False)

    def forward(self, idx, targets=None):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1), device=idx.device))
        for b in self.h:
            x = b(x)
        logits = self.head(self.ln(x))
        loss = (
            None
            if targets is None
            else F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        )
        return logits, loss


class Trainer:
    def __init__(self, config, model):
        self.config = config
        self.model = model.to(config.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr)
        self.iter = 0

    def get_batch(self):
        c = self.config
        ids = torch.randint(0, c.vocab, (c.batch, c.length + 1))
        return ids[:, :-1].to(c.device), ids[:, 1:].to(c.device)

    def run(self):
        self.model.train()
        while self.iter < self.config.max_iters:
            x, y = self.get_batch()
            logits, self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.iter += 1


if __name__ == "__main__":
    cfg = Config()
    trainer = Trainer(cfg, GPT(cfg))
    trainer.run()
