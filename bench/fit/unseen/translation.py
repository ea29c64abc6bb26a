"""A translator with nn.Transformer; batches are made by tokens and so vary in shape."""

import math
import random

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

PAD, BOS, EOS, SRC_VOCAB, TGT_VOCAB = 0, 1, 2, 12000, 10000
DEVICE = torch.device("cuda:0")


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size, dropout, maxlen=512):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        table = torch.zeros((maxlen, emb_size))
        table[:, 0::2] = torch.sin(pos * den)
        table[:, 1::2] = torch.cos(pos * den)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("table", table.unsqueeze(-2))

    def forward(self, x):
        return self.dropout(x + self.table[: x.size(0), :])


class Seq2SeqTransformer(nn.Module):
    def __init__(self, emb=512, heads=8, layers=4, ffn=2048, dropout=0.1):
        super().__init__()
        self.transformer = nn.Transformer(emb, heads, layers, layers, ffn, dropout)
        self.generator = nn.Linear(emb, TGT_VOCAB)
        self.src_tok, self.tgt_tok = nn.Embedding(SRC_VOCAB, emb), nn.Embedding(TGT_VOCAB, emb)
        self.pos = PositionalEncoding(emb, dropout)
        self.scale = math.sqrt(emb)

    def forward(self, src, tgt):
        tgt_mask = nn.Transformer.generate_square_subsequent_mask(len(tgt), device=src.device)
        src_pad, tgt_pad = (src == PAD).T, (tgt == PAD).T
        out = self.transformer(
            self.pos(self.src_tok(src) * self.scale),
            self.pos(self.tgt_tok(tgt) * self.scale),
            tgt_mask=tgt_mask,
            src_key_padding_mask=src_pad,
            tgt_key_padding_mask=tgt_pad.float().masked_fill(tgt_pad, float("-inf")),
            memory_key_padding_mask=src_pad,
        )
        return self.generator(out)


def sentence(vocab, rng):
    body = [rng.randrange(3, vocab) for _ in range(rng.randint(24, 60))]
    return torch.tensor([BOS, *body, EOS])


def get_batches(n_batches, sentences=80, seed=0):
    rng = random.Random(seed)
    for _ in range(n_batches):
        src = pad_sequence([sentence(SRC_VOCAB, rng) for _ in range(sentences)], padding_value=PAD)
        tgt = pad_sequence([sentence(TGT_VOCAB, rng) for _ in range(sentences)], padding_value=PAD)
        yield src, tgt


def train_epoch(model, optimizer, loss_fn):
    model.train()
    losses = 0
    for src, tgt in get_batches(5):
        src, tgt = src.to(DEVICE), tgt.to(DEVICE)
        logits = model(src, tgt[:-1, :])
        optimizer.zero_grad()
        loss = loss_fn(logits.reshape(-1, logits.shape[-1]), tgt[1:, :].reshape(-1))
        loss.backward()
        optimizer.step()
        losses += loss.item()
    return losses / 5


torch.manual_seed(0)
model = Seq2SeqTransformer().to(DEVICE)
for p in model.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
loss_fn = torch.nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
print("train loss", train_epoch(model, optimizer, loss_fn))
