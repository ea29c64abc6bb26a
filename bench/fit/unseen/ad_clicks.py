"""Clicks on advertisements: large embedding tables, crosses (DCN), row-wise sparse and dense optimizers."""

import torch
import torch.nn as nn

CARDINALITIES = [1_500_000, 800_000, 400_000, 120_000, 50_000, 9000, 3000, 700, 100, 40]
DENSE, DIM, BATCH = 13, 48, 16384


class CrossLayer(nn.Module):
    def __init__(self, dim, rank=64):
        super().__init__()
        self.u, self.v = nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim)

    def forward(self, x0, x):
        return x0 * self.v(self.u(x)) + x


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(n, DIM, mode="sum", sparse=True) for n in CARDINALITIES
        )
        self.bottom = nn.Sequential(
            nn.Linear(DENSE, 256), nn.ReLU(), nn.Linear(256, DIM), nn.ReLU()
        )
        width = DIM * (len(CARDINALITIES) + 1)
        self.cross = nn.ModuleList(CrossLayer(width) for _ in range(3))
        self.top = nn.Sequential(
            nn.Linear(width, 1024), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1),
        )  # fmt: skip

    def forward(self, dense, ids):
        parts = [self.bottom(dense)]
        for k, table in enumerate(self.tables):
            parts.append(table(ids[k]))
        x0 = x = torch.cat(parts, 1)
        for layer in self.cross:
            x = layer(x0, x)
        return self.top(x).squeeze(1)


def clicks():
    dense = torch.rand(BATCH, DENSE, device="cuda")
    ids = [torch.randint(0, n, (BATCH, 3), device="cuda") for n in CARDINALITIES]
    return dense, ids, (torch.rand(BATCH, device="cuda") < 0.03).float()


model = ClickModel().to("cuda")
sparse_opt = torch.optim.SparseAdam(list(model.tables.parameters()), lr=1e-3)
dense_opt = torch.optim.Adagrad(
    [p for n, p in model.named_parameters() if not n.startswith("tables")], lr=1e-2
)
bce = nn.BCEWithLogitsLoss(pos_weight=torch.tensor(10.0, device="cuda"))
for step in range(3):
    dense, ids, y = clicks()
    loss = bce(model(dense, ids), y)
    sparse_opt.zero_grad()
    dense_opt.zero_grad()
    loss.backward()
    sparse_opt.step()
    dense_opt.step()
    print(step, loss.item())
