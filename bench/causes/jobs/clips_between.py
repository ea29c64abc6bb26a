"""Clips of growing length are filtered in one buffer each, of which the spoken part is kept."""

import torch


def spoken(seconds, channels=64, rate=16000):
    """The filtered clip, without its silent end."""
    wave = torch.randn(channels, seconds * rate, device="cuda")
    level = wave.square_().mean().sqrt()
    end = int(seconds * rate * 0.4)
    del wave
    return torch.randn(channels, end, device="cuda").mul_(level)


clips = [spoken(seconds) for seconds in (60, 66, 72, 79, 87, 96, 105)]
