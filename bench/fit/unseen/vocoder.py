"""A HiFi-GAN-like vocoder: weight norm everywhere, two discriminators, a mel loss through the STFT."""

import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import weight_norm

SEGMENT, HOP, N_FFT, MELS = 8192, 256, 1024, 80


class ResStack(nn.Module):
    def __init__(self, ch, k, dilations):
        super().__init__()
        self.a = nn.ModuleList(
            weight_norm(nn.Conv1d(ch, ch, k, dilation=d, padding=d * (k - 1) // 2))
            for d in dilations
        )
        self.b = nn.ModuleList(
            weight_norm(nn.Conv1d(ch, ch, k, padding=(k - 1) // 2)) for _ in dilations
        )

    def forward(self, x):
        for a, b in zip(self.a, self.b):
            x = x + b(F.leaky_relu(a(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Generator(nn.Module):
    def __init__(self, ch=256, rates=(8, 8, 2, 2), kernels=(16, 16, 4, 4)):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(MELS, ch, 7, padding=3))
        self.ups, self.stacks = nn.ModuleList(), nn.ModuleList()
        for r, k in zip(rates, kernels):
            self.ups.append(weight_norm(nn.ConvTranspose1d(ch, ch // 2, k, r, (k - r) // 2)))
            ch //= 2
            self.stacks.append(nn.ModuleList(ResStack(ch, size, (1, 3, 5)) for size in (3, 7, 11)))
        self.post = weight_norm(nn.Conv1d(ch, 1, 7, padding=3))

    def forward(self, mel):
        x = self.pre(mel)
        for up, stacks in zip(self.ups, self.stacks):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(s(x) for s in stacks) / len(stacks)
        return torch.tanh(self.post(F.leaky_relu(x)))


class PeriodDiscriminator(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period = period
        chans = [1, 32, 128, 256, 512]
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(i, o, (5, 1), (3, 1), padding=(2, 0)))
            for i, o in itertools.pairwise(chans)
        )
        self.post = weight_norm(nn.Conv2d(512, 1, (3, 1), padding=(1, 0)))

    def forward(self, x):
        b, c, t = x.shape
        if t % self.period:
            x = F.pad(x, (0, self.period - t % self.period), "reflect")
        x = x.view(b, c, -1, self.period)
        fmap = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            fmap.append(x)
        return self.post(x).flatten(1), fmap


def mel_of(wav, bank, window):
    pad = (N_FFT - HOP) // 2
    wav = F.pad(wav, (pad, pad), mode="reflect").squeeze(1)
    spec = torch.stft(wav, N_FFT, HOP, N_FFT, window, center=False, return_complex=True)
    mag = torch.sqrt(spec.real.pow(2) + spec.imag.pow(2) + 1e-9)
    return torch.log(torch.clamp(bank @ mag, min=1e-5))


def main():
    device = "cuda"
    gen = Generator().to(device)
    discs = nn.ModuleList(PeriodDiscriminator(p) for p in (2, 3, 5, 7, 11)).to(device)
    opt_g = torch.optim.AdamW(gen.parameters(), 2e-4, betas=(0.8, 0.99))
    opt_d = torch.optim.AdamW(discs.parameters(), 2e-4, betas=(0.8, 0.99))
    bank = torch.rand(MELS, N_FFT // 2 + 1, device=device)
    window = torch.hann_window(N_FFT, device=device)
    for step in range(3):
        y = torch.rand(16, 1, SEGMENT, device=device) * 2 - 1
        mel = mel_of(y, bank, window)
        y_hat = gen(mel)

        opt_d.zero_grad()
        loss_d = 0
        for d in discs:
            real, fake = d(y)[0], d(y_hat.detach())[0]
            loss_d = loss_d + ((1 - real) ** 2).mean() + (fake**2).mean()
        loss_d.backward()
        opt_d.step()

        opt_g.zero_grad()
        loss_g = 45 * F.l1_loss(mel_of(y_hat, bank, window), mel)
        for d in discs:
            (_, fr), (fake, ff) = d(y), d(y_hat)
            loss_g = loss_g + ((1 - fake) ** 2).mean()
            loss_g = loss_g + 2 * sum(F.l1_loss(g, r) for r, g in zip(fr, ff))
        loss_g.backward()
        opt_g.step()
        print(f"{step}: gen {loss_g.item():.2f} disc {loss_d.item():.2f}")


if __name__ == "__main__":
    main()
