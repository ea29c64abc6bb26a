"""Facts of a knowledge graph: ComplEx with 800,000 entities, self-adversarial negatives, N3 penalty, Adagrad over dense tables."""

import torch
import torch.nn.functional as F
from torch import nn

ENTITIES, RELATIONS, DIM = 800_000, 1_200, 200


class ComplEx(nn.Module):
    def __init__(self):
        super().__init__()
        self.entity = nn.Embedding(ENTITIES, 2 * DIM, device="cuda")
        self.relation = nn.Embedding(RELATIONS, 2 * DIM, device="cuda")
        for table in (self.entity, self.relation):
            nn.init.normal_(table.weight, std=1e-3)

    def forward(self, h, r, t):
        """h, r: B x 1; t: B x N -> scores B x N and the factors for the penalty."""
        h, r, t = self.entity(h), self.relation(r), self.entity(t)
        hr, hi = h.chunk(2, -1)
        rr, ri = r.chunk(2, -1)
        tr, ti = t.chunk(2, -1)
        left = torch.cat([hr * rr - hi * ri, hr * ri + hi * rr], -1)
        score = (left * torch.cat([tr, ti], -1)).sum(-1)
        return score, (h, r, t)


def n3(factors):
    return sum(
        (f[..., :DIM] ** 2 + f[..., DIM:] ** 2).clamp(min=1e-12).pow(1.5).sum() / len(f)
        for f in factors
    )


def triples(batch, negatives):
    h = torch.randint(0, ENTITIES, (batch, 1), device="cuda")
    r = torch.randint(0, RELATIONS, (batch, 1), device="cuda")
    t = torch.randint(0, ENTITIES, (batch, 1), device="cuda")
    return h, r, t, torch.randint(0, ENTITIES, (batch, negatives), device="cuda")


if __name__ == "__main__":
    kge = ComplEx()
    optimizer = torch.optim.Adagrad(kge.parameters(), lr=0.1)
    for step in range(6):
        h, r, t, corrupt = triples(1024, 200)
        positive, factors = kge(h, r, t)
        negative, _ = kge(h, r, corrupt)
        with torch.no_grad():
            weight = negative.softmax(-1)
        loss = -F.logsigmoid(positive).mean() - (weight * F.logsigmoid(-negative)).sum(-1).mean()
        loss = loss + 1e-3 * n3(factors)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step:2d} {loss.item():.4f}")
