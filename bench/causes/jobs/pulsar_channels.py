"""A radio telescope's channels are dedispersed by one Fourier transform each, all at once; their length is prime."""

import os

import torch

MOMENTS = 2**17 if os.environ.get("MENDED") else 100_019


class Dedispersion(torch.nn.Module):
    """Turns the phase of every frequency back by what the plasma on the way has done to it."""

    def __init__(self, channels, measure=26.8):
        super().__init__()
        centre = torch.linspace(1.2, 1.6, channels)[:, None]
        offset = torch.fft.fftfreq(MOMENTS)[None] * 0.4 / channels
        phase = measure * offset.square() / (centre.square() * (centre + offset))
        self.register_buffer("chirp", torch.polar(torch.ones_like(phase), phase))

    def forward(self, voltages):
        spectra = torch.fft.fft(voltages, n=MOMENTS)
        spectra *= self.chirp
        return torch.fft.ifft(spectra)


clean = Dedispersion(256).to("cuda")
profile = torch.zeros(100_000, device="cuda")
with torch.inference_mode():
    for second in range(4):
        voltages = torch.randn(256, 100_019, dtype=torch.cfloat, device="cuda")
        profile += clean(voltages)[:, :100_000].abs().square().mean(0)
        del voltages
