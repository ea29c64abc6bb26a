"""Conformer + CTC for speech recognition. Features are made up; utterances differ in length and are put in buckets."""

import math
import random
from typing import Iterator

import torch
from torch import Tensor, nn

BLANK, VOCAB, MELS = 0, 256, 80


def lengths_to_padding_mask(lengths: Tensor, longest: int) -> Tensor:
    return torch.arange(longest, device=lengths.device)[None] >= lengths[:, None]


class SpecAugment(nn.Module):
    def __init__(self, freq: int = 27, time: int = 70, n: int = 2):
        super().__init__()
        self.freq, self.time, self.n = freq, time, n

    def forward(self, x: Tensor) -> Tensor:  # B T F
        if not self.training:
            return x
        x = x.clone()
        for _ in range(self.n):
            f = random.randint(0, self.freq)
            f0 = random.randint(0, x.size(2) - f)
            x[:, :, f0 : f0 + f] = 0
            t = random.randint(0, min(self.time, x.size(1) // 5))
            t0 = random.randint(0, x.size(1) - t)
            x[:, t0 : t0 + t] = 0
        return x


class Subsampling(nn.Module):
    def __init__(self, d: int):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, d, 3, 2), nn.ReLU(), nn.Conv2d(d, d, 3, 2), nn.ReLU()
        )
        self.out = nn.Linear(d * (((MELS - 1) // 2 - 1) // 2), d)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv(x.unsqueeze(1))
        x = self.out(x.transpose(1, 2).flatten(2))
        return x, ((lengths - 1) // 2 - 1) // 2


class RelPositionAttention(nn.Module):
    """Transformer-XL's relative positions, written out."""

    def __init__(self, d: int, heads: int, p: float):
        super().__init__()
        self.h, self.dk = heads, d // heads
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.pos = nn.Linear(d, d, bias=False)
        self.u = nn.Parameter(torch.zeros(heads, self.dk))
        self.w = nn.Parameter(torch.zeros(heads, self.dk))
        self.drop = nn.Dropout(p)

    @staticmethod
    def rel_shift(x: Tensor) -> Tensor:
        b, h, t, n = x.shape
        x = torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1).view(b, h, n + 1, t)
        return x[:, :, 1:].view(b, h, t, n)[..., : n // 2 + 1]

    def forward(self, x: Tensor, pe: Tensor, pad: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.h, self.dk)
        k = self.k(x).view(b, t, self.h, self.dk).transpose(1, 2)
        v = self.v(x).view(b, t, self.h, self.dk).transpose(1, 2)
        p = self.pos(pe).view(1, -1, self.h, self.dk).transpose(1, 2)
        ac = torch.matmul((q + self.u).transpose(1, 2), k.transpose(-2, -1))
        bd = self.rel_shift(torch.matmul((q + self.w).transpose(1, 2), p.transpose(-2, -1)))
        scores = (ac + bd) / math.sqrt(self.dk)
        scores = scores.masked_fill(pad[:, None, None, :], -1e4)
        attn = self.drop(torch.softmax(scores, dim=-1))
        return self.o(torch.matmul(attn, v).transpose(1, 2).reshape(b, t, -1))


class ConvModule(nn.Module):
    def __init__(self, d: int, kernel: int, p: float):
        super().__init__()
        self.pw1, self.pw2 = nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 1)
        self.dw = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d)
        self.bn, self.act, self.drop = nn.BatchNorm1d(d), nn.SiLU(), nn.Dropout(p)

    def forward(self, x: Tensor, pad: Tensor) -> Tensor:
        x = nn.functional.glu(self.pw1(x.transpose(1, 2)), dim=1)
        x = x.masked_fill(pad[:, None], 0.0)
        return self.drop(self.pw2(self.act(self.bn(self.dw(x))))).transpose(1, 2)


def feed_forward(d: int, p: float) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(d),
        nn.Linear(d, 4 * d),
        nn.SiLU(),
        nn.Dropout(p),
        nn.Linear(4 * d, d),
        nn.Dropout(p),
    )


class ConformerBlock(nn.Module):
    def __init__(self, d: int, heads: int, kernel: int, p: float):
        super().__init__()
        self.ff1, self.ff2 = feed_forward(d, p), feed_forward(d, p)
        self.norm_a, self.norm_c, self.norm_o = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn, self.conv = RelPositionAttention(d, heads, p), ConvModule(d, kernel, p)
        self.drop = nn.Dropout(p)

    def forward(self, x: Tensor, pe: Tensor, pad: Tensor) -> Tensor:
        x = x + 0.5 * self.ff1(x)
        x = x + self.drop(self.attn(self.norm_a(x), pe, pad))
        x = x + self.conv(self.norm_c(x), pad)
        x = x + 0.5 * self.ff2(x)
        return self.norm_o(x)


class Conformer(nn.Module):
    def __init__(
        self, d: int = 256, layers: int = 12, heads: int = 4, kernel: int = 31, p: float = 0.1
    ):
        super().__init__()
        self.d = d
        self.augment, self.subsample = SpecAugment(), Subsampling(d)
        self.blocks = nn.ModuleList(ConformerBlock(d, heads, kernel, p) for _ in range(layers))
        self.ctc = nn.Linear(d, VOCAB)

    def positions(self, t: int, device: torch.device) -> Tensor:
        at = torch.arange(t - 1, -t, -1.0, device=device)[:, None]
        div = torch.exp(torch.arange(0, self.d, 2.0, device=device) * -(math.log(10000.0) / self.d))
        return torch.stack([(at * div).sin(), (at * div).cos()], dim=-1).flatten(1)

    def forward(self, feats: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x, lengths = self.subsample(self.augment(feats), lengths)
        pad = lengths_to_padding_mask(lengths, x.size(1))
        pe = self.positions(x.size(1), x.device)
        for block in self.blocks:
            x = block(x, pe, pad)
        return self.ctc(x).log_softmax(-1), lengths


def buckets(n: int, frames_per_batch: int) -> Iterator[list[int]]:
    lengths = sorted(random.randint(400, 1600) for _ in range(n))
    batches, current = [], []
    for length in lengths:
        if current and (len(current) + 1) * length > frames_per_batch:
            batches.append(current)
            current = []
        current.append(length)
    batches.append(current)
    random.shuffle(batches)
    yield from batches


def collate(lengths: list[int]) -> tuple[Tensor, ...]:
    feats = torch.zeros(len(lengths), max(lengths), MELS)
    for row, length in zip(feats, lengths):
        row[:length].normal_()
    texts = [torch.randint(1, VOCAB, (length // 25,)) for length in lengths]
    return (
        feats,
        torch.tensor(lengths),
        nn.utils.rnn.pad_sequence(texts, batch_first=True),
        torch.tensor([len(t) for t in texts]),
    )


def train(steps: int = 5, frames_per_batch: int = 36_000) -> None:
    random.seed(7)
    torch.manual_seed(7)
    model = Conformer().cuda().train()
    criterion = nn.CTCLoss(blank=BLANK, zero_infinity=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    noam = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: model.d**-0.5 * min((n + 1) ** -0.5, (n + 1) * 10_000**-1.5)
    )
    for n, lengths in enumerate(buckets(200, frames_per_batch)):
        if n == steps:
            break
        feats, flens, texts, tlens = (t.cuda() for t in collate(lengths))
        logp, olens = model(feats, flens)
        loss = criterion(logp.transpose(0, 1), texts, olens, tlens)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        noam.step()
        print(f"step {n} batch {tuple(feats.shape)} loss {loss.item():.3f} grad {norm:.2f}")


train()
