"""Frauds among payments: a relational graph network with bases over cards, shops and devices, the whole graph in a step, dropped edges, focal loss, AdamW."""

import torch
import torch.nn as nn
import torch.nn.functional as F

NODES = {"card": 120_000, "shop": 20_000, "device": 60_000}
RELATIONS = [("card", "shop"), ("card", "device"), ("device", "shop"), ("card", "card")]
EDGES = 300_000


def synthetic_graph(seed):
    g = torch.Generator().manual_seed(seed)
    start, offset = {}, 0
    for kind, n in NODES.items():
        start[kind] = offset
        offset += n
    edges = []
    for a, b in RELATIONS:
        src = torch.randint(0, NODES[a], (EDGES,), generator=g) + start[a]
        dst = torch.randint(0, NODES[b], (EDGES,), generator=g) + start[b]
        edges.append(torch.stack([src, dst]))
        edges.append(torch.stack([dst, src]))
    features = torch.randn(offset, 48, generator=g)
    labels = (torch.rand(NODES["card"], generator=g) < 0.03).float()
    return features, edges, labels


class RGCNConv(nn.Module):
    """W_r = sum_b a_rb V_b; messages are averaged by relation."""

    def __init__(self, d_in, d_out, relations, bases):
        super().__init__()
        self.V = nn.Parameter(torch.empty(bases, d_in, d_out))
        self.a = nn.Parameter(torch.empty(relations, bases))
        self.root = nn.Linear(d_in, d_out)
        nn.init.xavier_uniform_(self.V)
        nn.init.xavier_uniform_(self.a)

    def forward(self, h, edges):
        out = self.root(h)
        weights = torch.einsum("rb,bio->rio", self.a, self.V)
        for w, (src, dst) in zip(weights, edges):
            degree = torch.zeros(len(h), device=h.device).scatter_add_(
                0, dst, torch.ones_like(dst, dtype=h.dtype)
            )
            mean = torch.zeros_like(h).index_add_(0, dst, h[src]) / degree.clamp(min=1)[:, None]
            out = out + mean @ w
        return out


class FraudNet(nn.Module):
    def __init__(self, d_in=48, hidden=128, layers=2, relations=8, bases=4, p=0.3):
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(d_in, hidden), nn.ReLU())
        self.convs = nn.ModuleList(
            [RGCNConv(hidden, hidden, relations, bases) for _ in range(layers)]
        )
        self.norms = nn.ModuleList([nn.BatchNorm1d(hidden) for _ in range(layers)])
        self.out, self.p = nn.Linear(hidden, 1), p

    def forward(self, x, edges):
        h = self.enter(x)
        for conv, norm in zip(self.convs, self.norms):
            h = h + F.dropout(F.relu(norm(conv(h, edges))), self.p, self.training)
        return self.out(h[: NODES["card"]]).squeeze(-1)


def focal_loss(logits, labels, gamma=2.0, alpha=0.9):
    bce = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    p = torch.exp(-bce)
    return ((alpha * labels + (1 - alpha) * (1 - labels)) * (1 - p) ** gamma * bce).mean()


def drop_edges(edges, keep, generator):
    return [
        e[:, torch.randperm(EDGES, generator=generator)[: int(keep * EDGES)].to(e.device)]
        for e in edges
    ]


def main():
    torch.manual_seed(1)
    g = torch.Generator().manual_seed(1)
    device = torch.device("cuda")
    features, edges, labels = synthetic_graph(1)
    features, labels = features.to(device), labels.to(device)
    edges = [e.to(device) for e in edges]
    model = FraudNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005, weight_decay=5e-4)
    for epoch in range(1, 6):
        model.train()
        optimizer.zero_grad()
        loss = focal_loss(model(features, drop_edges(edges, 0.9, g)), labels)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            risk = model(features, edges)
            flagged = risk.topk(3000).indices
            precision = labels[flagged].mean()
        print(f"epoch {epoch:02d} loss {loss.item():.4f} precision@3000 {precision.item():.3f}")


if __name__ == "__main__":
    main()
