"""What to watch: deep and cross network v2 over 26 embedding tables, two tasks, Adagrad for tables and Adam for the rest."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CARDINALITIES = [3_000_000, 1_200_000, 400_000, 250_000, 90_000] + [20_000] * 9 + [1_000] * 12
DIM, DENSE = 64, 13


class CrossLayer(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.u = nn.Linear(width, rank, bias=False)
        self.v = nn.Linear(rank, width)

    def forward(self, x0, x):
        return x0 * self.v(self.u(x)) + x


class DCNv2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, DIM) for n in CARDINALITIES])
        for table in self.tables:
            nn.init.uniform_(table.weight, -0.01, 0.01)
        width = DIM * len(CARDINALITIES) + DENSE
        self.cross = nn.ModuleList([CrossLayer(width, 512) for _ in range(3)])
        self.deep = nn.Sequential(
            nn.Linear(width, 1024), nn.ReLU(), nn.BatchNorm1d(1024), nn.Linear(1024, 512), nn.ReLU()
        )
        self.click, self.finish = nn.Linear(width + 512, 1), nn.Linear(width + 512, 1)

    def forward(self, dense, sparse):
        columns = [table(sparse[:, i]) for i, table in enumerate(self.tables)]
        x0 = torch.cat([dense.log1p(), *columns], 1)
        x = x0
        for layer in self.cross:
            x = layer(x0, x)
        h = torch.cat([x, self.deep(x0)], 1)
        return self.click(h).squeeze(1), self.finish(h).squeeze(1)


def log_reader(batches, size):
    for _ in range(batches):
        sparse = torch.stack([torch.randint(0, n, (size,)) for n in CARDINALITIES], 1)
        yield torch.rand(size, DENSE) * 100, sparse, torch.randint(0, 2, (2, size)).float()


def main():
    model = DCNv2().cuda()
    tables = torch.optim.Adagrad(model.tables.parameters(), lr=0.02)
    rest = torch.optim.Adam(
        [p for n, p in model.named_parameters() if not n.startswith("tables")], lr=1e-3
    )
    for i, (dense, sparse, labels) in enumerate(log_reader(8, 16_384)):
        dense, sparse, labels = dense.cuda(), sparse.cuda(), labels.cuda()
        click, finish = model(dense, sparse)
        loss = F.binary_cross_entropy_with_logits(click, labels[0])
        loss = (
            loss
            + 0.3
            * (
                F.binary_cross_entropy_with_logits(finish, labels[1], reduction="none") * labels[0]
            ).mean()
        )
        tables.zero_grad()
        rest.zero_grad()
        loss.backward()
        tables.step()
        rest.step()
        print(f"batch {i}: {loss.item():.5f}")


if __name__ == "__main__":
    main()
