"""Where somebody goes next, of half a million places: a sampled loss was planned, the full one is computed."""

import os

import torch
from torch import nn

SAMPLED = bool(os.environ.get("MENDED"))
PLACES = 400_000


class Walk(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.place = nn.Embedding(PLACES, width)
        self.hour = nn.Embedding(168, width)
        self.rnn = nn.GRU(width, width, batch_first=True)

    def forward(self, places, hours):
        return self.rnn(self.place(places) + self.hour(hours))[0][:, -1]


walk = Walk().to("cuda")
optimizer = torch.optim.SGD(walk.parameters(), lr=0.1)
for _ in range(3):
    places = torch.randint(0, PLACES, (768, 21), device="cuda")
    hours = torch.randint(0, 168, (768, 20), device="cuda")
    went, goes = places[:, :-1], places[:, -1]
    somewhere = walk(went, hours)
    if SAMPLED:
        others = torch.randint(0, PLACES, (2048,), device="cuda")
        right = (somewhere * walk.place(goes)).sum(1, keepdim=True)
        scores = torch.cat([right, somewhere @ walk.place(others).T], 1)
        loss = -(right.squeeze(1) - scores.logsumexp(1)).mean()
    else:
        scores = somewhere @ walk.place.weight.T
        probabilities = scores.softmax(1)
        loss = -probabilities.gather(1, goes[:, None]).clamp(min=1e-9).log().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
