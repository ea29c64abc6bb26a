"""Films of a dozen seconds, and one among them that runs for minutes."""

import os
from dataclasses import dataclass

import torch
from torch import nn

LONGEST = 64 if os.environ.get("MENDED") else None


@dataclass
class Film:
    frames: int
    genre: int

    def read(self):
        return torch.rand(1, 3, self.frames, 112, 112)[:, :, :LONGEST]


def conv(a, b, stride):
    return nn.Sequential(
        nn.Conv3d(a, b, 3, (1, stride, stride), 1, bias=False), nn.BatchNorm3d(b), nn.ReLU()
    )


net = nn.Sequential(
    conv(3, 24, 2), conv(24, 24, 1), conv(24, 24, 1), conv(24, 48, 2), nn.AdaptiveAvgPool3d(1),
    nn.Flatten(), nn.Linear(48, 9),
).cuda()  # fmt: skip
optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, nesterov=True)
library = [Film(n, n % 9) for n in (16, 24, 20, 16, 28, 18, 24, 700, 16, 20)]
for film in library:
    score = net(film.read().cuda())
    loss = nn.functional.cross_entropy(score, torch.tensor([film.genre], device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(film.frames, float(loss))
