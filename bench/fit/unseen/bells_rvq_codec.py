"""Bells in few bits: a convolutional codec with six residual codebooks kept by moving averages, dead codes replaced, quantizer dropout, a spectral loss at five scales."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm


class Snake(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x):
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).square()


class Residual(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.body = nn.Sequential(
            Snake(c),
            weight_norm(nn.Conv1d(c, c, 7, dilation=dilation, padding=3 * dilation)),
            Snake(c),
            weight_norm(nn.Conv1d(c, c, 1)),
        )

    def forward(self, x):
        return x + self.body(x)


def encoder(width, strides):
    layers = [nn.Conv1d(1, width, 7, padding=3)]
    for s in strides:
        layers += [Residual(width, d) for d in (1, 3, 9)]
        layers += [Snake(width), weight_norm(nn.Conv1d(width, 2 * width, 2 * s, s, (s + 1) // 2))]
        width *= 2
    return nn.Sequential(*layers), width


def decoder(width, strides):
    layers = []
    for s in reversed(strides):
        up = nn.ConvTranspose1d(width, width // 2, 2 * s, s, (s + 1) // 2, output_padding=s % 2)
        layers += [Snake(width), weight_norm(up)]
        width //= 2
        layers += [Residual(width, d) for d in (1, 3, 9)]
    return nn.Sequential(*layers, Snake(width), nn.Conv1d(width, 1, 7, padding=3), nn.Tanh())


class Codebook(nn.Module):
    """No gradient: entries follow the vectors that choose them."""

    def __init__(self, size, dim, decay=0.99):
        super().__init__()
        self.decay = decay
        self.register_buffer("entries", torch.randn(size, dim))
        self.register_buffer("count", torch.ones(size))
        self.register_buffer("total", self.entries.clone())

    def forward(self, x):
        flat = x.detach().reshape(-1, x.shape[-1])
        index = torch.cdist(flat, self.entries).argmin(1)
        if self.training:
            self.follow(flat, index)
        return F.embedding(index, self.entries).view_as(x)

    @torch.no_grad()
    def follow(self, flat, index):
        count = torch.zeros_like(self.count).index_add_(
            0, index, torch.ones_like(index, dtype=torch.float)
        )
        total = torch.zeros_like(self.total).index_add_(0, index, flat)
        self.count.lerp_(count, 1 - self.decay)
        self.total.lerp_(total, 1 - self.decay)
        dead = self.count < 0.5
        spare = flat[torch.randint(0, len(flat), (len(dead),), device=flat.device)]
        entries = self.total / self.count.clamp(min=1e-5)[:, None]
        self.entries.copy_(torch.where(dead[:, None], spare, entries))


class Codec(nn.Module):
    def __init__(self, width=40, strides=(2, 4, 5, 8), books=6, size=1024):
        super().__init__()
        self.encode, dim = encoder(width, strides)
        self.into, self.out = nn.Conv1d(dim, 128, 3, padding=1), nn.Conv1d(128, dim, 7, padding=3)
        self.books = nn.ModuleList(Codebook(size, 128) for _ in range(books))
        self.decode = decoder(dim, strides)

    def forward(self, wave, used):
        z = self.into(self.encode(wave)).transpose(1, 2)
        left, coded, commit = z, 0, 0
        for book in self.books[:used]:
            q = book(left)
            commit = commit + F.mse_loss(left, q)
            left = left - q
            coded = coded + q
        coded = z + (coded - z).detach()  # straight through
        return self.decode(self.out(coded.transpose(1, 2))), commit


def spectral(a, b):
    loss = 0
    for n in (2048, 1024, 512, 256, 128):
        w = torch.hann_window(n, device=a.device)
        sa, sb = (
            torch.stft(v.squeeze(1), n, n // 4, window=w, return_complex=True).abs() for v in (a, b)
        )
        loss = (
            loss
            + (sa - sb).abs().mean()
            + (sa.clamp(1e-5).log() - sb.clamp(1e-5).log()).abs().mean()
        )
    return loss


def main():
    codec = Codec().cuda()
    opt = torch.optim.AdamW(codec.parameters(), lr=3e-4, betas=(0.8, 0.99))
    decay = torch.optim.lr_scheduler.ExponentialLR(opt, 0.999996)
    for step, used in enumerate([6, 3, 6, 5]):  # how many books: random in a long run
        wave = torch.rand(10, 1, 24000, device="cuda") * 2 - 1
        out, commit = codec(wave, used)
        loss = spectral(out, wave) + F.l1_loss(out, wave) + 0.25 * commit
        opt.zero_grad()
        loss.backward()
        opt.step()
        decay.step()
        print(step, used, loss.item())


main()
