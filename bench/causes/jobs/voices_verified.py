"""Is it the same speaker? Pairs of recordings are compared by a network that was trained before. `torch.no_grad()` stands on a line of its own."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")


class Res2Block(nn.Module):
    """A part of ECAPA: each group of channels also hears the one before."""

    def __init__(self, c, dilation, groups=4):
        super().__init__()
        self.groups, w = groups, c // groups
        self.enter, self.leave = nn.Conv1d(c, c, 1), nn.Conv1d(c, c, 1)
        self.parts = nn.ModuleList(
            nn.Conv1d(w, w, 3, padding=dilation, dilation=dilation) for _ in range(groups - 1)
        )
        self.norm = nn.BatchNorm1d(c)
        self.squeeze, self.excite = nn.Linear(c, 128), nn.Linear(128, c)

    def forward(self, x):
        first, *rest = F.relu(self.enter(x)).chunk(self.groups, 1)
        outputs = [first]
        for conv, part in zip(self.parts, rest):
            outputs.append(F.relu(conv(part + outputs[-1])))
        h = self.norm(self.leave(torch.cat(outputs, 1)))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(h.mean(2)))))
        return x + h * gate[:, :, None]


class Speaker(nn.Module):
    def __init__(self, mels=80, c=512):
        super().__init__()
        self.enter = nn.Conv1d(mels, c, 5, padding=2)
        self.blocks = nn.ModuleList(Res2Block(c, d) for d in (2, 3, 4))
        self.look = nn.Sequential(nn.Conv1d(3 * c, 128, 1), nn.Tanh(), nn.Conv1d(128, 3 * c, 1))
        self.out = nn.Linear(6 * c, 192)

    def forward(self, mel):
        x, kept = self.enter(mel), []
        for block in self.blocks:
            x = block(x)
            kept.append(x)
        x = torch.cat(kept, 1)
        w = self.look(x).softmax(2)
        mean = (w * x).sum(2)
        spread = ((w * x * x).sum(2) - mean**2).clamp(1e-6).sqrt()
        return F.normalize(self.out(torch.cat([mean, spread], 1)), dim=1)


def verify(model, pairs):
    scores = []
    for one, other in pairs:
        scores += (model(one.cuda()) * model(other.cuda())).sum(1).tolist()
    return scores


model = Speaker().cuda()
model.eval()
pairs = ((torch.rand(24, 80, 800), torch.rand(24, 80, 800)) for _ in range(3))
if MENDED:
    with torch.no_grad():
        scores = verify(model, pairs)
else:
    torch.no_grad()
    scores = verify(model, pairs)
print(len(scores), "pairs,", sum(score > 0.5 for score in scores), "alike")
