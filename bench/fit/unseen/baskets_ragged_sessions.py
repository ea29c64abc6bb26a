"""Next-purchase model over ragged baskets: EmbeddingBag over items, attention over a customer's baskets.

Items get sparse gradients (SparseAdam); the rest AdamW. Customers have 5 to 60 baskets of 1 to 12 items.
"""

import random
from collections import namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

ITEMS = 400_000
DIM = 256
Batch = namedtuple("Batch", "items offsets lengths target")


def customers(n, seed):
    rng = random.Random(seed)
    for _ in range(n):
        baskets = [
            [rng.randrange(ITEMS) for _ in range(rng.randint(1, 12))]
            for _ in range(rng.randint(5, 60))
        ]
        yield baskets


def collate(group):
    items, offsets, lengths, target = [], [], [], []
    for baskets in group:
        *history, last = baskets
        lengths.append(len(history))
        target.append(last[0])
        for b in history:
            offsets.append(len(items))
            items.extend(b)
    as_tensor = lambda v: torch.tensor(v, dtype=torch.long)
    return Batch(as_tensor(items), as_tensor(offsets), lengths, as_tensor(target))


def by_length(people, batch_size):
    """Buckets people of similar history, so that padding stays small."""
    people = sorted(people, key=len)
    groups = [people[i : i + batch_size] for i in range(0, len(people), batch_size)]
    random.Random(4).shuffle(groups)
    return [collate(g) for g in groups]


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, dropout=0.1, batch_first=True)
        self.ff = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * dim, dim)
        )

    def forward(self, x, mask, pad):
        h = self.n1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, key_padding_mask=pad, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class BasketModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.items = nn.EmbeddingBag(ITEMS, DIM, mode="mean", sparse=True)
        self.position = nn.Embedding(64, DIM)
        self.blocks = nn.ModuleList(Block(DIM, 8) for _ in range(6))
        self.norm = nn.LayerNorm(DIM)
        nn.init.normal_(self.items.weight, std=0.02)

    def forward(self, batch):
        bags = self.items(batch.items, batch.offsets)
        x = pad_sequence(bags.split(batch.lengths), batch_first=True)
        n = x.shape[1]
        lengths = torch.tensor(batch.lengths, device=x.device)
        pad = torch.arange(n, device=x.device)[None] >= lengths[:, None]
        causal = torch.triu(torch.ones(n, n, dtype=torch.bool, device=x.device), 1)
        x = x + self.position(torch.arange(n, device=x.device))
        for block in self.blocks:
            x = block(x, causal, pad)
        x = self.norm(x)
        return x[torch.arange(len(lengths), device=x.device), lengths - 1]


def sampled_loss(model, query, target, negatives=16384):
    neg = torch.randint(ITEMS, (negatives,), device=query.device)
    candidates = torch.cat([target, neg])
    vectors = F.embedding(candidates, model.items.weight, sparse=True)
    logits = query @ vectors.t() / 0.07
    return F.cross_entropy(logits, torch.arange(len(target), device=query.device))


@torch.no_grad()
def recall(model, batches, k=20):
    model.eval()
    hits = n = 0
    for batch in batches:
        batch = to_gpu(batch)
        scores = model(batch) @ model.items.weight.t()
        hits += (scores.topk(k).indices == batch.target[:, None]).any(1).sum().item()
        n += len(batch.target)
    model.train()
    return hits / n


def to_gpu(batch):
    return batch._replace(
        items=batch.items.cuda(), offsets=batch.offsets.cuda(), target=batch.target.cuda()
    )


def main():
    random.seed(0)
    torch.manual_seed(0)
    train = by_length(list(customers(16 * 768, 0)), 768)
    held = by_length(list(customers(512, 1)), 256)
    model = BasketModel().cuda()
    dense = [p for n, p in model.named_parameters() if not n.startswith("items.")]
    optimizers = {
        "dense": torch.optim.AdamW(dense, lr=5e-4, weight_decay=0.01),
        "sparse": torch.optim.SparseAdam([model.items.weight], lr=1e-3),
    }
    for step, batch in enumerate(train):
        batch = to_gpu(batch)
        loss = sampled_loss(model, model(batch), batch.target)
        for o in optimizers.values():
            o.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(dense, 1.0)
        for o in optimizers.values():
            o.step()
        print(
            f"{step} {len(batch.items)} items, longest {max(batch.lengths)}, loss {loss.item():.3f}",
            flush=True,
        )
        if step % 8 == 7:
            print("recall@20", recall(model, held), flush=True)


main()
