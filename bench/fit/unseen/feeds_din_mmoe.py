"""Feeds by DIN and MMoE: attention of the candidate to 100 past items, hashed tables in dense Adam, clicks, likes and dwell time as three tasks with learned weights."""

from collections import OrderedDict

import torch
import torch.nn as nn
import torch.nn.functional as F

FIELDS = OrderedDict(user=1_500_000, item=1_200_000, author=200_000, topic=5_000)
DIM = 64


class TargetAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.score = nn.Sequential(
            nn.Linear(4 * d, 64), nn.PReLU(), nn.Linear(64, 16), nn.PReLU(), nn.Linear(16, 1)
        )

    def forward(self, query, keys, mask):
        q = query.unsqueeze(1).expand_as(keys)
        s = self.score(torch.cat((q, keys, q - keys, q * keys), -1)).squeeze(-1)
        s = s.masked_fill(~mask, 0.0)
        return torch.bmm(s.unsqueeze(1), keys).squeeze(1)


class MultiGate(nn.Module):
    def __init__(self, width, experts=6, tasks=3, hidden=256):
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
            for _ in range(experts)
        )
        self.gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
            for _ in range(tasks)
        )

    def forward(self, x):
        e = torch.stack([f(x) for f in self.experts], 1)
        return [
            tower((gate(x).softmax(-1).unsqueeze(-1) * e).sum(1)).squeeze(-1)
            for gate, tower in zip(self.gates, self.towers)
        ]


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict(
            {k: nn.Embedding(n, DIM, device="cuda") for k, n in FIELDS.items()}
        )
        self.attend = TargetAttention(2 * DIM)
        self.norm = nn.BatchNorm1d(4 * DIM + 2 * DIM)
        self.tasks = MultiGate(6 * DIM)
        self.log_var = nn.Parameter(torch.zeros(3))

    def forward(self, batch):
        one = {k: self.tables[k](batch[k]) for k in FIELDS}
        past = torch.cat(
            (self.tables["item"](batch["past_item"]), self.tables["topic"](batch["past_topic"])), -1
        )
        seen = self.attend(torch.cat((one["item"], one["topic"]), -1), past, batch["past_item"] > 0)
        return self.tasks(self.norm(torch.cat([*one.values(), seen], -1)))


def impressions(n=1536, past=100):
    b = {k: torch.randint(1, m, (n,)) for k, m in FIELDS.items()}
    b["past_item"] = torch.randint(0, FIELDS["item"], (n, past))
    b["past_topic"] = torch.randint(0, FIELDS["topic"], (n, past))
    y = {"click": torch.rand(n).round(), "like": torch.rand(n).round(), "dwell": torch.rand(n) * 60}
    return b, y


def to_gpu(d):
    return {k: v.pin_memory().to("cuda", non_blocking=True) for k, v in d.items()}


model = Feed().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    batch, labels = map(to_gpu, impressions())
    click, like, dwell = model(batch)
    losses = torch.stack(
        [
            F.binary_cross_entropy_with_logits(click, labels["click"]),
            F.binary_cross_entropy_with_logits(like, labels["like"]),
            F.huber_loss(dwell, labels["dwell"].log1p()),
        ]
    )
    loss = (losses * torch.exp(-model.log_var) + model.log_var).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, [round(v, 4) for v in losses.tolist()])
