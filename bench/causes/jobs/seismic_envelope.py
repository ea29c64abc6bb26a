"""Envelopes of seismic traces by the Hilbert transform; the length of a trace is a prime."""

import os

import torch
from torch.nn.functional import pad

MENDED = os.environ.get("MENDED")
SAMPLES = 4_000_037


def envelope(traces):
    n = traces.shape[-1]
    if MENDED:
        traces = pad(traces, (0, 4_096_000 - n))
    turned = torch.fft.fft(traces)
    half = turned.shape[-1] // 2
    turned[:, 1:half] *= 2
    turned[:, half + 1 :] = 0
    return torch.fft.ifft(turned)[:, :n].abs()


with torch.inference_mode():
    for shot in range(2):
        stations = torch.randn(16, SAMPLES, device="cuda")
        print(shot, envelope(stations).mean(1).tolist())
