"""Retrieval for a shop: users and items as large embeddings and MLPs, softmax over all items of the batch, Adam over everything."""

import torch
import torch.nn as nn
import torch.nn.functional as F

N_USERS, N_ITEMS, N_CATS, DIM = 1_500_000, 400_000, 2000, 128


class Tower(nn.Module):
    def __init__(self, n, extra):
        super().__init__()
        self.id = nn.Embedding(n, DIM)
        self.bag = nn.EmbeddingBag(extra, DIM, mode="mean")
        self.mlp = nn.Sequential(
            nn.Linear(2 * DIM, 1024),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.Linear(512, DIM),
        )

    def forward(self, ids, bag):
        return F.normalize(self.mlp(torch.cat([self.id(ids), self.bag(bag)], 1)), dim=1)


with torch.device("cuda"):
    users, items = Tower(N_USERS, N_ITEMS), Tower(N_ITEMS, N_CATS)
opt = torch.optim.Adam([*users.parameters(), *items.parameters()], lr=1e-3)


def batches(n, size=8192):
    for _ in range(n):
        yield (
            torch.randint(0, N_USERS, (size,)),
            torch.randint(0, N_ITEMS, (size, 20)),
            torch.randint(0, N_ITEMS, (size,)),
            torch.randint(0, N_CATS, (size, 4)),
        )


for step, batch in enumerate(batches(10)):
    user, history, item, cats = (t.cuda(non_blocking=True) for t in batch)
    scores = users(user, history) @ items(item, cats).T / 0.05
    loss = F.cross_entropy(scores, torch.arange(len(scores), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 0:
        print(step, loss.item())
