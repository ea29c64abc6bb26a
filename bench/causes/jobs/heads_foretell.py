"""Four heads foretell the next four words. Each has a loss over the whole vocabulary."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

MENDED = os.environ.get("MENDED")
WORDS, WIDTH, LENGTH, AHEAD = 48_000, 384, 512, 4


class Mixer(nn.Module):
    """A causal convolution and a gate, instead of attention."""

    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.conv = nn.Conv1d(d, d, 4, groups=d)

    def forward(self, x):
        gate, y = self.up(self.norm(x)).chunk(2, -1)
        y = self.conv(F.pad(y.transpose(1, 2), (3, 0))).transpose(1, 2)
        return x + self.down(F.silu(gate) * y)


class Foreteller(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.trunk = nn.Sequential(*(Mixer(WIDTH) for _ in range(4)))
        self.ahead = nn.ModuleList(Mixer(WIDTH) for _ in range(AHEAD))
        self.norm = nn.RMSNorm(WIDTH)

    def score(self, hidden, target):
        logits = F.linear(self.norm(hidden), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), target.flatten())

    def forward(self, ids):
        x, losses = self.trunk(self.words(ids[:, :LENGTH])), []
        for n, head in enumerate(self.ahead, 1):
            hidden, target = head(x), ids[:, n : n + LENGTH]
            if MENDED:
                parts = zip(hidden.chunk(8, 1), target.chunk(8, 1))
                losses += [checkpoint(self.score, *p, use_reentrant=False) / 8 for p in parts]
            else:
                losses.append(self.score(hidden, target))
        return sum(losses)


model = Foreteller().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    loss = model(torch.randint(0, WORDS, (4, LENGTH + AHEAD), device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
