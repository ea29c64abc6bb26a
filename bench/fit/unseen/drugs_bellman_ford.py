"""Which drug treats which disease: Neural Bellman-Ford network on a knowledge graph. From the head of each query, messages
run over all edges for six rounds, conditioned on the queried relation; every node is then a candidate tail."""

import torch
import torch.nn.functional as F
from torch import nn

NODES, RELATIONS, TRIPLES, NEGATIVES = 8_000, 24, 40_000, 32


class BellmanFordLayer(nn.Module):
    """DistMult messages, principal neighbourhood aggregation (mean, max, std) with two degree scalers."""

    def __init__(self, dim):
        super().__init__()
        self.relation = nn.Linear(dim, 2 * RELATIONS * dim)
        self.linear = nn.Linear(dim * (1 + 3 * 2), dim)
        self.norm = nn.LayerNorm(dim)
        self.dim = dim

    def forward(self, h, query, boundary, edges, scale):
        src, dst, kind = edges
        b, d = query.shape
        relation = self.relation(query).view(b, 2 * RELATIONS, d).transpose(0, 1)
        message = h[src] * relation[kind]  # E x B x D
        index = dst[:, None, None].expand_as(message)
        degree = torch.bincount(dst, minlength=NODES).clamp(min=1).view(-1, 1, 1) + 1
        total = torch.zeros_like(h).index_add(0, dst, message) + boundary
        square = torch.zeros_like(h).index_add(0, dst, message.square()) + boundary.square()
        mean = total / degree
        std = (square / degree - mean.square()).clamp(min=1e-6).sqrt()
        top = torch.scatter_reduce(boundary, 0, index, message, "amax", include_self=True)
        pooled = torch.cat([mean, top, std], 2)
        update = self.linear(torch.cat([h, pooled, pooled * scale], 2))
        return h + F.relu(self.norm(update))


class NBFNet(nn.Module):
    def __init__(self, dim=32, layers=6):
        super().__init__()
        self.query = nn.Embedding(2 * RELATIONS, dim)
        self.layers = nn.ModuleList(BellmanFordLayer(dim) for _ in range(layers))
        self.score = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, heads, relations, tails, edges):
        query = self.query(relations)  # B x D
        b, d = query.shape
        boundary = torch.zeros(NODES, b, d, device=query.device)
        boundary = boundary.index_put((heads, torch.arange(b, device=heads.device)), query)
        degree = torch.bincount(edges[1], minlength=NODES).float() + 1
        scale = degree.log().div(degree.log().mean()).view(-1, 1, 1)
        h = boundary
        for layer in self.layers:
            h = layer(h, query, boundary, edges, scale)
        found = h.transpose(0, 1).gather(1, tails[..., None].expand(-1, -1, d))
        return self.score(torch.cat([found, query[:, None].expand_as(found)], 2)).squeeze(2)


def drop_direct(edges, heads, tails):
    """The asked edge itself must not be walked, in neither direction."""
    src, dst, kind = edges
    asked = torch.cat([heads * NODES + tails, tails * NODES + heads])
    keep = ~torch.isin(src * NODES + dst, asked)
    return src[keep], dst[keep], kind[keep]


def negatives(tails, n):
    return torch.randint(NODES, (len(tails), n), device=tails.device)


def main(batch=16, steps=3, temperature=0.5):
    torch.manual_seed(13)
    device = torch.device("cuda")
    # a graph with hubs
    popularity = torch.rand(NODES, device=device).pow(3) + 0.02
    head = torch.multinomial(popularity, TRIPLES, replacement=True)
    tail = torch.multinomial(popularity, TRIPLES, replacement=True)
    kind = torch.randint(RELATIONS, (TRIPLES,), device=device)
    edges = (torch.cat([head, tail]), torch.cat([tail, head]), torch.cat([kind, kind + RELATIONS]))

    model = NBFNet().to(device)
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        pick = torch.randint(TRIPLES, (batch,), device=device)
        h, t, r = head[pick], tail[pick], kind[pick]
        tails = torch.cat([t[:, None], negatives(t, NEGATIVES)], 1)
        logits = model(h, r, tails, drop_direct(edges, h, t))
        target = torch.zeros_like(logits)
        target[:, 0] = 1
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        weight = torch.ones_like(logits)
        weight[:, 1:] = F.softmax(logits[:, 1:].detach() / temperature, dim=1)
        loss = ((loss * weight).sum(1) / weight.sum(1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        rank = (logits[:, 1:] > logits[:, :1]).sum(1).float().mean()
        print(f"step {step} loss {loss.item():.4f} mean rank among {NEGATIVES}: {rank.item():.1f}")


if __name__ == "__main__":
    main()
