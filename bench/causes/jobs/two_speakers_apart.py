"""Conv-TasNet on mixtures of two speakers, with the permutation-free SI-SNR loss."""

import os

import torch
from torch import nn

MENDED = os.environ.get("MENDED")
BATCH = 16
PARTS = 8 if MENDED else 1


class Block(nn.Module):
    def __init__(self, width, hidden, dilation):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(width, hidden, 1),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
            nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
            nn.Conv1d(hidden, width, 1),
        )

    def forward(self, x):
        return x + self.net(x)


class ConvTasNet(nn.Module):
    def __init__(self, filters=256, width=128, hidden=384, repeats=1, blocks=7):
        super().__init__()
        self.encoder = nn.Conv1d(1, filters, 16, stride=8, bias=False)
        self.norm = nn.GroupNorm(1, filters)
        self.bottleneck = nn.Conv1d(filters, width, 1)
        self.separator = nn.Sequential(
            *[Block(width, hidden, 2**i) for _ in range(repeats) for i in range(blocks)]
        )
        self.mask = nn.Conv1d(width, 2 * filters, 1)
        self.decoder = nn.ConvTranspose1d(filters, 1, 16, stride=8, bias=False)

    def forward(self, mixture):
        w = self.encoder(mixture.unsqueeze(1))
        m = torch.sigmoid(self.mask(self.separator(self.bottleneck(self.norm(w)))))
        first, second = m.chunk(2, 1)
        return torch.stack([self.decoder(w * first), self.decoder(w * second)], 1).squeeze(2)


def si_snr(estimate, target, eps=1e-8):
    estimate = estimate - estimate.mean(-1, keepdim=True)
    target = target - target.mean(-1, keepdim=True)
    projection = (estimate * target).sum(-1, keepdim=True) * target
    projection = projection / (target.pow(2).sum(-1, keepdim=True) + eps)
    noise = estimate - projection
    return 10 * torch.log10(projection.pow(2).sum(-1) / (noise.pow(2).sum(-1) + eps) + eps)


def pit_loss(estimates, sources):
    straight = si_snr(estimates, sources).mean(1)
    crossed = si_snr(estimates.flip(1), sources).mean(1)
    return -torch.maximum(straight, crossed).mean()


model = ConvTasNet().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    sources = torch.randn(BATCH, 2, 32000)
    optimizer.zero_grad()
    for part in sources.chunk(PARTS):
        part = part.cuda()
        loss = pit_loss(model(part.sum(1)), part) / PARTS
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
