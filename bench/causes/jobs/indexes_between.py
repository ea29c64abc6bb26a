"""Indexes of several sizes are built in turn; the distances at the end need one piece."""
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 512), nn.Linear(512, 512)

    def forward(self, x):
        return self.b(self.a(x).relu())


encoder = Encoder().cuda()
indexes = {}
with torch.inference_mode():
    for language, documents in enumerate(range(100_000, 200_000, 12_000)):
        spare = torch.empty(documents, 768, device="cuda")
        del spare
        indexes[language] = torch.zeros(int(documents * 0.56), 768, device="cuda")
    for _ in range(4):
        query = encoder(torch.randn(1000, 64, device="cuda"))
    distances = torch.empty(1_000, 240_000, device="cuda")
    print(query.shape, distances.shape, len(indexes))
