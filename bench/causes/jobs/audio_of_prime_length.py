"""Loudness by a Fourier transform of whole recordings, whose length happens to be a prime."""

import os

import torch

LENGTH = 2**21 if os.environ.get("MENDED") else 2**21 - 9


def loudness(waves, weights):
    return torch.fft.rfft(waves, LENGTH).abs() @ weights


with torch.no_grad():
    weights = torch.rand(LENGTH // 2 + 1, 3, device="cuda")
    for album in range(3):
        waves = torch.randn(24, 2_000_000, device="cuda")
        print(loudness(waves, weights).shape)
        del waves
