"""An image restorer with a non-local block: every pixel of a large map attends to every pixel."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class NonLocal(nn.Module):
    def __init__(self, width, inner=32):
        super().__init__()
        self.theta, self.phi, self.g = (nn.Conv2d(width, inner, 1) for _ in range(3))
        self.out = nn.Conv2d(inner, width, 1)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        query, key, value = (
            part(x).flatten(2).transpose(1, 2) for part in (self.theta, self.phi, self.g)
        )
        if MENDED:
            heads = (part[:, None].contiguous() for part in (query, key, value))
            found = F.scaled_dot_product_attention(*heads)[:, 0]
        else:
            found = (query @ key.transpose(1, 2) * query.shape[-1] ** -0.5).softmax(-1) @ value
        found = found.transpose(1, 2).unflatten(2, x.shape[2:])
        return x + self.gamma * self.out(found)


restorer = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.PReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.PReLU(),
    NonLocal(64),
    nn.Conv2d(64, 64, 3, padding=1), nn.PReLU(), nn.Conv2d(64, 3, 3, padding=1),
).cuda()  # fmt: skip
optimizer = torch.optim.Adam(restorer.parameters(), lr=2e-4)
for step in range(3):
    clean = torch.rand(2, 3, 128, 128, device="cuda")
    noisy = clean + 0.1 * torch.randn_like(clean)
    loss = F.l1_loss(noisy - restorer(noisy), clean)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
