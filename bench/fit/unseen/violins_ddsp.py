"""Violins by differentiable signal processing: harmonics and filtered noise driven by a GRU, reverb learned as an impulse response, spectral loss at six scales, EMA by swa_utils, Adam."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

RATE, HOP, FRAMES = 16_000, 64, 500


def mlp(i, o):
    return nn.Sequential(
        *(
            m
            for k in range(3)
            for m in (nn.Linear(i if k == 0 else o, o), nn.LayerNorm(o), nn.LeakyReLU())
        )
    )


def positive(x):
    return 2 * torch.sigmoid(x) ** math.log(10) + 1e-7


class Violin(nn.Module):
    def __init__(self, hidden=512, harmonics=80, bands=65):
        super().__init__()
        self.pitch, self.loud = mlp(1, hidden), mlp(1, hidden)
        self.gru = nn.GRU(2 * hidden, hidden, batch_first=True)
        self.after = mlp(hidden + 2, hidden)
        self.tones = nn.Linear(hidden, harmonics + 1)
        self.noise = nn.Linear(hidden, bands)
        self.room = nn.Parameter(torch.randn(RATE) * 1e-3)
        self.dry = nn.Parameter(torch.tensor(3.0))
        self.register_buffer("number", torch.arange(1, harmonics + 1).float())

    def stretch(self, x):
        return F.interpolate(x.transpose(1, 2), scale_factor=HOP, mode="linear").transpose(1, 2)

    def harmonic(self, f0, z):
        z = positive(z)
        loud, share = z[..., :1], z[..., 1:]
        share = share * (f0 * self.number < RATE / 2)
        share = share / share.sum(-1, keepdim=True).clamp_min(1e-6)
        phase = torch.cumsum(2 * math.pi * self.stretch(f0) / RATE, 1)
        return (torch.sin(phase * self.number) * self.stretch(loud * share)).sum(-1)

    def filtered(self, z):
        response = torch.fft.irfft(torch.complex(positive(z - 5), torch.zeros_like(z)))
        window = torch.hann_window(response.shape[-1], device=z.device)
        response = F.pad(response.roll(response.shape[-1] // 2, -1) * window, (0, HOP))
        grain = F.pad(
            torch.rand(*z.shape[:2], HOP, device=z.device) * 2 - 1, (0, z.shape[-1] * 2 - 2)
        )
        grains = torch.fft.irfft(torch.fft.rfft(response) * torch.fft.rfft(grain))
        return grains[..., :HOP].flatten(1)

    def forward(self, f0, loud):
        x = torch.cat([self.pitch(f0.log2()), self.loud(loud)], -1)
        x = self.after(torch.cat([self.gru(x)[0], f0.log2(), loud], -1))
        dry = self.harmonic(f0, self.tones(x)) + self.filtered(self.noise(x))
        n = 2 * dry.shape[1]
        envelope = torch.exp(
            -F.softplus(self.dry) * torch.arange(RATE, device=dry.device) / RATE * 5
        )
        wet = torch.fft.irfft(torch.fft.rfft(dry, n) * torch.fft.rfft(self.room * envelope, n), n)
        return dry + wet[:, : dry.shape[1]]


def spectral_loss(a, b):
    total = 0.0
    for size in (2048, 1024, 512, 256, 128, 64):
        window = torch.hann_window(size, device=a.device)
        sa, sb = (
            torch.stft(x, size, size // 4, window=window, return_complex=True).abs() for x in (a, b)
        )
        total = (
            total
            + (sa - sb).abs().mean()
            + (torch.log(sa + 1e-7) - torch.log(sb + 1e-7)).abs().mean()
        )
    return total


def main():
    violin = Violin().cuda()
    ema = AveragedModel(violin, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    opt = torch.optim.Adam(violin.parameters(), lr=1e-3)
    decay = torch.optim.lr_scheduler.StepLR(opt, 10_000, 0.98)
    for step in range(5):
        f0 = 196 + 600 * torch.rand(32, 1, 1).expand(-1, FRAMES, -1).cuda()
        loud = torch.rand(32, FRAMES, 1).cuda()
        played = torch.randn(32, FRAMES * HOP).cuda()
        loss = spectral_loss(violin(f0, loud), played)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(violin.parameters(), 3.0)
        opt.step()
        decay.step()
        ema.update_parameters(violin)
        print(f"step {step}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
