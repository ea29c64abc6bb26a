"""A recommender whose embedding tables have dense gradients."""
import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self, tables=8, rows=1_000_000, width=64):
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(rows, width, device="cuda") for _ in range(tables)
        )
        self.top = nn.Sequential(nn.Linear(tables * width, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()

    def forward(self, ids):
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.top(torch.cat(found, 1)).squeeze(1)


model = Recommender()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    ids = torch.randint(0, 1_000_000, (512, 8), device="cuda")
    clicked = torch.rand(512, device="cuda")
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(ids), clicked).backward()
    optimizer.step()
