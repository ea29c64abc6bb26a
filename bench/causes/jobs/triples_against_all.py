"""Facts of a knowledge graph are scored against all its 120,000 entities, with smoothed labels for each of them."""

import os

import torch
from torch import nn

ENTITIES, RELATIONS, WIDTH = 120_000, 40, 200
NEGATIVES = 255 if os.environ.get("MENDED") else None


class Knowledge(nn.Module):
    """DistMult with a little convolution before it."""

    def __init__(self):
        super().__init__()
        self.entity, self.relation = nn.Embedding(ENTITIES, WIDTH), nn.Embedding(RELATIONS, WIDTH)
        self.conv = nn.Conv1d(2, 16, 3, padding=1)
        self.join = nn.Linear(16 * WIDTH, WIDTH)

    def query(self, head, relation):
        pair = torch.stack([self.entity(head), self.relation(relation)], 1)
        return self.join(self.conv(pair).relu().flatten(1))

    def scores(self, query, candidates=None):
        if candidates is None:
            return query @ self.entity.weight.T
        return torch.einsum("bw,bcw->bc", query, self.entity(candidates))


def some_facts(n=1536):
    def draw(most, *shape):
        return torch.randint(0, most, shape, device="cuda")

    return draw(ENTITIES, n), draw(RELATIONS, n), draw(ENTITIES, n)


model = Knowledge().cuda()
loss_of = nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for _ in range(2):
        head, relation, tail = some_facts()
        query = model.query(head, relation)
        if NEGATIVES:
            others = torch.randint(0, ENTITIES, (len(tail), NEGATIVES), device="cuda")
            scores = model.scores(query, torch.cat([tail[:, None], others], 1))
            labels = torch.zeros_like(scores)
            labels[:, 0] = 1
        else:
            scores = model.scores(query)
            labels = torch.zeros_like(scores).scatter_(1, tail[:, None], 1.0)
        labels = 0.9 * labels + 0.1 / ENTITIES
        loss = loss_of(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
