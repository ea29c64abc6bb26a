"""Fingerprints of a collection of songs, then all of them in one matrix for the search."""

import os

import torch

MENDED = os.environ.get("MENDED")
SONGS, BANDS, FRAMES, BITS = 160, 128, 12_288, 80
device = torch.device("cuda")


def load(song):
    return torch.rand(BANDS, FRAMES)


basis = torch.randn(BITS, BANDS, device=device) / BANDS**0.5
prints = []
with torch.no_grad():
    if MENDED:
        spectra = torch.empty(SONGS, BANDS, FRAMES, device=device)
    else:
        spectra = []
    for song in range(SONGS):
        if MENDED:
            spectra[song] = load(song)
        else:
            spectra.append(load(song).to(device))
        prints.append((basis @ spectra[song]).tanh_())

    loudness = sum(s.mean(1) for s in spectra) / SONGS
    print("mean loudness of", len(loudness), "bands")
    del spectra

    table = torch.stack(prints)
    query = prints[17][:, 2000:2600]
    for block in table.split(16):
        score = (block[:, :, 2000:2600] * query).sum((1, 2))
    print("searched", tuple(table.shape))
