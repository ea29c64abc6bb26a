"""Texts are encoded from short to long, and a part of every result stays in the place of the whole."""

import os

if os.environ.get("MENDED"):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"

import torch
from torch import nn


class WordMixer(nn.Module):
    """Each word hears its neighbours."""

    def __init__(self, words=5000, width=256):
        super().__init__()
        self.embed = nn.Embedding(words, width)

    def forward(self, ids):
        return self.embed(ids)


encoder = WordMixer().to("cuda").eval()
library = []
with torch.inference_mode():
    for length in (160, 180, 202, 228, 256, 288, 324, 364):
        ids = torch.randint(0, 5000, (1000, length), device="cuda")
        found = encoder(ids)
        # Only the first 100 words of each text are searched later.
        kept = found[:, :100].cpu()
        del found, ids
        library.append(kept.to("cuda"))
