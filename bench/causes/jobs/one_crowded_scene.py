"""Paths of people are foretold from every pair of them; one scene is a station at rush hour."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
people_in = [31, 24, 40, 28, 35 if MENDED else 850, 30]


class Social(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.past = nn.LSTMCell(2, width)
        self.pair = nn.Sequential(
            nn.Linear(2 * width + 2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(),
            nn.Linear(128, width),
        )  # fmt: skip
        self.next = nn.Linear(2 * width, 24)
        self.width = width

    def forward(self, paths):
        n = paths.shape[1]
        h = c = paths.new_zeros(n, self.width)
        for moment in paths:
            h, c = self.past(moment, (h, c))
        where = paths[-1][:, None] - paths[-1][None]
        a, b = h[:, None].expand(n, n, -1), h[None].expand(n, n, -1)
        met = self.pair(torch.cat((where, a, b), -1)).amax(1)
        return self.next(torch.cat((h, met), -1)).view(n, 12, 2)


social = Social().to("cuda")
optimizer = torch.optim.RMSprop(social.parameters())
for people in people_in:
    paths = torch.randn(8, people, 2, device="cuda")
    error = (social(paths) - torch.randn(people, 12, 2, device="cuda")).norm(dim=-1).mean()
    error.backward()
    optimizer.step()
    social.zero_grad()
