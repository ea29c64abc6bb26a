"""Recordings get the echo of a room by a Fourier transform whose length is a large prime."""

import os

import torch

MENDED = os.environ.get("MENDED")
LENGTH = 2**22 if MENDED else 2**22 - 3


@torch.inference_mode()
def reverb(waves, room):
    spectrum = torch.fft.rfft(waves, LENGTH)
    spectrum *= torch.fft.rfft(room, LENGTH)
    return torch.fft.irfft(spectrum, LENGTH)


room = torch.randn(48000, device="cuda") * torch.linspace(0, -8, 48000, device="cuda").exp()
for part in range(2):
    waves = torch.randn(32, 4_140_000, device="cuda")
    reverb(waves, room).abs().amax(-1).tolist()
