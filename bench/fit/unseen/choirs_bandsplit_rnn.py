"""One voice out of a choir: BandSplit RNN, spectra cut into 30 bands, LSTMs along time and along bands, complex masks, L1 on spectrum and wave, Adam, clipping."""

import torch
from torch import nn

FFT, HOP = 2048, 512
BANDS = [10] * 10 + [25] * 12 + [60] * 6 + [150, 105]  # bins of each band, fine below
BANDS[-1] = FFT // 2 + 1 - sum(BANDS[:-1])  # what is left at the top


class AxisLSTM(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.GroupNorm(1, dim)
        self.rnn = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, dim)

    def forward(self, x):
        """x: batch x dim x sequences x steps; the LSTM runs along the last axis."""
        b, d, n, t = x.shape
        y = self.norm(x).permute(0, 2, 3, 1).reshape(b * n, t, d)
        y = self.out(self.rnn(y)[0]).view(b, n, t, d).permute(0, 3, 1, 2)
        return x + y


class BandSplit(nn.Module):
    def __init__(self, dim=96, hidden=160, layers=3):
        super().__init__()
        self.into = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(2 * w), nn.Linear(2 * w, dim)) for w in BANDS
        )
        self.time = nn.ModuleList(AxisLSTM(dim, hidden) for _ in range(layers))
        self.band = nn.ModuleList(AxisLSTM(dim, hidden) for _ in range(layers))
        self.mask = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(dim),
                nn.Linear(dim, 4 * dim),
                nn.Tanh(),
                nn.Linear(4 * dim, 4 * w),
                nn.GLU(),
            )
            for w in BANDS
        )

    def forward(self, spectrum):
        """Complex B x F x T in, complex B x F x T out."""
        parts = torch.view_as_real(spectrum).split(BANDS, dim=1)
        x = torch.stack(
            [f(p.permute(0, 2, 1, 3).flatten(2)) for f, p in zip(self.into, parts)], dim=2
        )  # B x T x bands x dim
        x = x.permute(0, 3, 2, 1)
        for along_time, along_bands in zip(self.time, self.band):
            x = along_time(x)
            x = along_bands(x.transpose(2, 3)).transpose(2, 3)
        x = x.permute(2, 0, 3, 1)  # bands x B x T x dim
        masks = [f(xb).unflatten(-1, (-1, 2)).transpose(1, 2) for f, xb in zip(self.mask, x)]
        mask = torch.view_as_complex(torch.cat(masks, dim=1).float().contiguous())
        return spectrum * mask


def choir(batch, seconds, rate=44100):
    voices = torch.randn(4, batch, int(seconds * rate), device="cuda") * 0.1
    return voices.sum(0), voices[0]


def main():
    window = torch.hann_window(FFT, device="cuda")
    net = BandSplit().cuda()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(4):
        mix, voice = choir(batch=8, seconds=3)
        spec = torch.stft(mix, FFT, HOP, window=window, return_complex=True)
        goal = torch.stft(voice, FFT, HOP, window=window, return_complex=True)
        guess = net(spec)
        wave = torch.istft(guess, FFT, HOP, window=window, length=mix.shape[-1])
        error = torch.view_as_real(guess - goal).abs().mean() + (wave - voice).abs().mean()
        opt.zero_grad()
        error.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        print(f"step {step}: {error.item():.4f} (gradient {norm.item():.2f})")


main()
