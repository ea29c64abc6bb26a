"""Tracks of a detector attend to each other; the weights are asked for and thrown away."""

import os

import torch
from torch import nn

NEED = not os.environ.get("MENDED")


class TrackLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 8, batch_first=True)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.gate = nn.Linear(width, width)

    def forward(self, tracks):
        seen, _ = self.attention(tracks, tracks, tracks, need_weights=NEED)
        tracks = self.first(tracks + seen)
        return self.second(tracks + torch.sigmoid(self.gate(tracks)) * tracks)


layers = nn.Sequential(nn.Linear(11, 128), *[TrackLayer(128) for _ in range(5)], nn.Linear(128, 4))
layers.cuda()
optimizer = torch.optim.Adam(layers.parameters())
for scene in range(3):
    tracks = torch.randn(2, 3000, 11, device="cuda")
    loss = layers(tracks).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
