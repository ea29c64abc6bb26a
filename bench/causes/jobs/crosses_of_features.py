"""Clicks by crossing features with wide matrices. All updates of Adam are made at once, in lists, and so are their roots."""

import os

import torch
from torch import nn

FOREACH = False if os.environ.get("MENDED") else None  # None: as torch likes it
FIELDS, CARDINALITY, WIDTH = 56, 500, 32


class Cross(nn.Module):
    """x0 * (W x + b) + x, as in the second deep and cross network."""

    def __init__(self, d):
        super().__init__()
        self.linear = nn.Linear(d, d)

    def forward(self, x0, x):
        return torch.addcmul(x, x0, self.linear(x))


class DeepAndCross(nn.Module):
    def __init__(self, crosses=6, deep=6):
        super().__init__()
        d = FIELDS * WIDTH
        self.embed = nn.Embedding(FIELDS * CARDINALITY, WIDTH)
        self.register_buffer("offset", torch.arange(FIELDS) * CARDINALITY)
        self.cross = nn.ModuleList(Cross(d) for _ in range(crosses))
        self.deep = nn.Sequential(
            *(m for _ in range(deep) for m in (nn.Linear(d, d), nn.LayerNorm(d), nn.ReLU()))
        )
        self.out = nn.Linear(2 * d, 1)

    def forward(self, fields):
        x0 = self.embed(fields + self.offset).flatten(1)
        x = x0
        for cross in self.cross:
            x = cross(x0, x)
        return self.out(torch.cat([x, self.deep(x0)], 1)).squeeze(1)


class Meter:
    """A mean that forgets."""

    def __init__(self, keep=0.9):
        self.keep, self.value = keep, None

    def __call__(self, x):
        self.value = x if self.value is None else self.keep * self.value + (1 - self.keep) * x
        return self.value


def log_of_clicks(days=2, batches=2, batch=512):
    g = torch.Generator().manual_seed(20)
    for _ in range(days):
        for _ in range(batches):
            fields = torch.randint(CARDINALITY, (batch, FIELDS), generator=g)
            yield fields, (fields[:, 3] % 7 == 0).float()


torch.manual_seed(20)
model = DeepAndCross().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=FOREACH)
loss_of, meter = nn.BCEWithLogitsLoss(), Meter()
for fields, clicked in log_of_clicks():
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(model(fields.cuda()), clicked.cuda())
    loss.backward()
    optimizer.step()
    print(f"{meter(loss.item()):.4f}")
