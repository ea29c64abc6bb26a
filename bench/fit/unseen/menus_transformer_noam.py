"""Translating menus with nn.Transformer: post-norm, tied embeddings, Noam schedule, batches by tokens, fp32."""

import math
import random

import torch
import torch.nn as nn

PAD = 0


class Positional(nn.Module):
    def __init__(self, width, drop=0.1, length=1024):
        super().__init__()
        pos = torch.arange(length)[:, None]
        div = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.zeros(length, width)
        table[:, 0::2], table[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("table", table)
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        return self.drop(x + self.table[: x.size(1)])


class Translator(nn.Module):
    def __init__(self, vocab, width=512, layers=6, heads=8, ff=2048):
        super().__init__()
        self.scale = math.sqrt(width)
        self.embed = nn.Embedding(vocab, width, padding_idx=PAD)
        self.pos = Positional(width)
        self.core = nn.Transformer(width, heads, layers, layers, ff, 0.1, batch_first=True)
        self.out = nn.Linear(width, vocab, bias=False)
        self.out.weight = self.embed.weight
        for p in self.core.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def forward(self, src, tgt):
        n = tgt.size(1)
        causal = torch.triu(torch.ones(n, n, dtype=torch.bool, device=tgt.device), 1)
        h = self.core(
            self.pos(self.embed(src) * self.scale),
            self.pos(self.embed(tgt) * self.scale),
            tgt_mask=causal,
            src_key_padding_mask=src.eq(PAD),
            tgt_key_padding_mask=tgt.eq(PAD),
            memory_key_padding_mask=src.eq(PAD),
        )
        return self.out(h)


def token_batches(count, tokens, vocab, rng):
    for _ in range(count):
        longest = rng.choice([64, 96, 128])
        rows = tokens // longest
        pair = torch.randint(1, vocab, (2, rows, longest))
        for r in range(rows):
            pair[:, r, rng.randint(longest // 2, longest) :] = PAD
        pair[:, 0] = pair[:, 0].clamp(min=1)
        yield pair[0].cuda(), pair[1].cuda()


def run(vocab=32000, tokens=6144, steps=8, warmup=4000):
    torch.manual_seed(0)
    model = Translator(vocab).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    noam = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: 512**-0.5 * min((s + 1) ** -0.5, (s + 1) * warmup**-1.5)
    )
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    model.train()
    for step, (src, tgt) in enumerate(token_batches(steps, tokens, vocab, random.Random(0))):
        logits = model(src, tgt[:, :-1])
        loss = criterion(logits.reshape(-1, vocab), tgt[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        noam.step()
        print(f"{step} {tuple(src.shape)} {loss.item():.4f}")


if __name__ == "__main__":
    run()
