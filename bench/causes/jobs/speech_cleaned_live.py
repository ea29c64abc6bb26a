"""Noise is taken out of a long conference, chunk by chunk. All spectra wait on the GPU to be turned back at the end."""

import os

import torch
from torch import nn

WINDOW, HOP = 1024, 256


class Cleaner(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.rnn = nn.GRU(WINDOW // 2 + 1, hidden, batch_first=True)
        self.mask = nn.Linear(hidden, WINDOW // 2 + 1)

    def forward(self, loudness, state):
        h, state = self.rnn(loudness.mT, state)
        return self.mask(h).sigmoid().mT, state


def microphones(chunks, channels=16, seconds=12):
    for _ in range(chunks):
        yield torch.randn(channels, seconds * 16_000)


@torch.no_grad()
def clean(model, chunks):
    window = torch.hann_window(WINDOW, device="cuda")
    state, spectra, sound = None, [], []
    for chunk in microphones(chunks):
        spectrum = torch.stft(chunk.cuda(), WINDOW, HOP, window=window, return_complex=True)
        mask, state = model(spectrum.abs(), state)
        if os.environ.get("MENDED"):
            sound.append(torch.istft(spectrum * mask, WINDOW, HOP, window=window).cpu())
        else:
            spectra.append(spectrum * mask)
    for spectrum in spectra:
        sound.append(torch.istft(spectrum, WINDOW, HOP, window=window).cpu())
    return torch.cat(sound, 1)


print(clean(Cleaner().cuda().eval(), 24).shape)
