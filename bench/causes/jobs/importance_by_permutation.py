"""Which blood value matters? A column is shuffled, and how much worse the model gets is its weight. All patients are asked at once, with a graph that nobody needs."""

import os

import torch
import torch.nn.functional as F
from torch import nn

MENDED = os.environ.get("MENDED")
COLUMNS = 28


class Patients:
    def __init__(self, count=5000):
        self.values = torch.randn(count, COLUMNS)
        self.ill = (self.values[:, :3].sum(1) > 0).float()

    def batches(self, size):
        for rows in torch.randperm(len(self.ill)).split(size):
            yield self.values[rows], self.ill[rows]


class FeatureTransformer(nn.Module):
    def __init__(self, d=96, layers=3):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(COLUMNS, d))
        self.shift = nn.Parameter(torch.randn(COLUMNS, d))
        self.mix = nn.ModuleList(
            nn.MultiheadAttention(d, 4, batch_first=True) for _ in range(layers)
        )
        self.feed = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
            for _ in range(layers)
        )
        self.out = nn.Linear(d, 1)

    def forward(self, values):
        x = values[:, :, None] * self.scale + self.shift
        for mix, feed in zip(self.mix, self.feed):
            x = x + mix(x, x, x, need_weights=False)[0]
            x = x + feed(x)
        return self.out(x.mean(1)).squeeze(1)


def fit(model, patients):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for values, ill in patients.batches(500):
        loss = F.binary_cross_entropy_with_logits(model(values.cuda()), ill.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def importance(model, patients):
    model.eval()
    values, ill = patients.values.cuda(), patients.ill.cuda()
    base = F.binary_cross_entropy_with_logits(model(values), ill).item()
    for column in range(COLUMNS):
        shuffled = values.clone()
        shuffled[:, column] = values[torch.randperm(len(values)).cuda(), column]
        yield column, F.binary_cross_entropy_with_logits(model(shuffled), ill).item() - base


patients, model = Patients(), FeatureTransformer().cuda()
fit(model, patients)
with torch.set_grad_enabled(not MENDED):
    weights = dict(importance(model, patients))
print(sorted(weights, key=weights.get)[-3:])
