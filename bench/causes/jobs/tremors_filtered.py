"""Band-pass and whitening of a day's tremors at the stations of an array."""

import os

import torch
import torch.nn.functional as F

MENDED = os.environ.get("MENDED")
RATE = 20.0


class SpectralFilter:
    def __init__(self, low, high, width=64):
        self.low, self.high, self.width = low, high, width

    def __call__(self, x):
        n = x.shape[-1]
        size = 1_036_800 if MENDED else n
        spectrum = torch.fft.rfft(x, n=size)
        f = torch.fft.rfftfreq(size, 1 / RATE, device=x.device)
        taper = torch.sigmoid((f - self.low) * 40) * torch.sigmoid((self.high - f) * 40)
        spectrum *= taper
        return torch.fft.irfft(spectrum, n=size)[..., :n]


stations, samples = 48, 1_036_729  # the recorder starts a little late and stops a little early
day = torch.randn(stations, samples).cuda()
bands = [(0.1, 0.5), (0.5, 2.0), (2.0, 8.0)]
with torch.no_grad():
    for low, high in bands:
        filtered = SpectralFilter(low, high)(day)
        energy = F.avg_pool1d(filtered.pow_(2).unsqueeze(1), 1200)
        print(low, high, tuple(energy.shape))
