"""Searches by sparse words (SPLADE): an own encoder, logits over 30,522 words for each token, max over tokens, FLOPS penalty that grows, margin MSE to a teacher, bf16."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB = 30522


class Triple(NamedTuple):
    query: Tensor
    good: Tensor
    bad: Tensor
    margin: Tensor


class Splade(nn.Module):
    def __init__(self, dim=384, layers=4):
        super().__init__()
        self.words = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.where = nn.Embedding(256, dim)
        layer = nn.TransformerEncoderLayer(
            dim, 6, 4 * dim, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def forward(self, ids: Tensor) -> Tensor:
        """Word weights: batch x VOCAB, never negative, mostly zero after training."""
        pad = ids == 0
        x = self.words(ids) + self.where(torch.arange(ids.shape[1], device=ids.device))
        x = self.transform(self.body(x, src_key_padding_mask=pad))
        logits = F.linear(x, self.words.weight, self.bias)
        weights = torch.log1p(torch.relu(logits)) * ~pad[..., None]
        return weights.amax(1)


def flops(reps: Tensor) -> Tensor:
    return reps.abs().mean(0).square().sum()


def triples(batch, device):
    def text(length):
        ids = torch.randint(999, VOCAB, (batch, length), device=device)
        ends = torch.randint(length // 2, length, (batch, 1), device=device)
        return ids.masked_fill(torch.arange(length, device=device) > ends, 0)

    while True:
        yield Triple(text(24), text(128), text(128), torch.randn(batch, device=device))


def train(steps=5, batch=28, device="cuda"):
    torch.manual_seed(13)
    model = Splade().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
    for step, t in zip(range(steps), triples(batch, device)):
        ramp = min(1.0, (step + 1) / 50) ** 2
        with torch.autocast("cuda", dtype=torch.bfloat16):
            q, good, bad = model(t.query), model(t.good), model(t.bad)
        q, good, bad = q.float(), good.float(), bad.float()
        margin = (q * good).sum(1) - (q * bad).sum(1)
        loss = F.mse_loss(margin, t.margin)
        loss = loss + ramp * (5e-3 * flops(q) + 1e-3 * flops(torch.cat([good, bad])))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        words = (good > 0).sum(1).float().mean()
        print(f"{step:>3} loss {loss.item():.4f}  words in a page {words.item():.0f}")


if __name__ == "__main__":
    train()
