"""Spectra of ever longer songs are made in fp32 and kept in fp16, in the place of the song before."""

import os

if os.environ.get("MENDED"):
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"

import torch

bank = torch.rand(64, 200, device="cuda")


def spectrum(seconds):
    """What 64 bands hear, at 4000 moments a second."""
    wide = torch.rand(64, seconds * 4000, device="cuda")
    return wide.mul_(bank[:, :1]).half()


with torch.no_grad():
    songs = [spectrum(seconds) for seconds in range(90, 330, 30)]
    heard = torch.zeros(64, 2_600_000, device="cuda")
    for song in songs:
        heard[:, : song.shape[1]] += song
