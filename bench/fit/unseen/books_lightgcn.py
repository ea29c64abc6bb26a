"""Books for readers: LightGCN, three sparse propagations over the whole graph for each step, BPR with sampled negatives, recall at twenty by chunks, Adam."""

import argparse

import torch
from torch import nn


class LightGCN(nn.Module):
    def __init__(self, users, items, dim, layers, graph):
        super().__init__()
        self.users, self.items, self.layers, self.graph = users, items, layers, graph
        self.user_emb = nn.Embedding(users, dim)
        self.item_emb = nn.Embedding(items, dim)
        nn.init.normal_(self.user_emb.weight, std=0.1)
        nn.init.normal_(self.item_emb.weight, std=0.1)

    def propagate(self):
        e = torch.cat([self.user_emb.weight, self.item_emb.weight])
        every = [e]
        for _ in range(self.layers):
            e = torch.sparse.mm(self.graph, e)
            every.append(e)
        mean = torch.stack(every, dim=1).mean(dim=1)
        return mean.split([self.users, self.items])

    def bpr(self, user, pos, neg):
        u, i = self.propagate()
        eu, ep, en = u[user], i[pos], i[neg]
        loss = nn.functional.softplus((eu * en).sum(1) - (eu * ep).sum(1)).mean()
        own = self.user_emb(user), self.item_emb(pos), self.item_emb(neg)
        return loss, sum(o.pow(2).sum() for o in own) / (2 * len(user))


def normalized_adjacency(user, item, users, items):
    row = torch.cat([user, item + users])
    col = torch.cat([item + users, user])
    degree = torch.bincount(row, minlength=users + items).clamp(min=1).float()
    value = degree[row].rsqrt() * degree[col].rsqrt()
    n = users + items
    index = torch.stack([row, col])
    return torch.sparse_coo_tensor(index, value, (n, n)).coalesce()


@torch.no_grad()
def recall(model, held_user, held_item, k=20, chunk=1024):
    u, i = model.propagate()
    hits = 0
    for at in range(0, len(held_user), chunk):
        scores = u[held_user[at : at + chunk]] @ i.T
        hits = hits + (scores.topk(k).indices == held_item[at : at + chunk, None]).any(1).sum()
    return hits.item() / len(held_user)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=420_000)
    parser.add_argument("--items", type=int, default=180_000)
    parser.add_argument("--ratings", type=int, default=3_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--decay", type=float, default=1e-4)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=5)
    a = parser.parse_args()

    torch.manual_seed(2020)
    torch.sparse.check_sparse_tensor_invariants.disable()
    user = torch.randint(0, a.users, (a.ratings,))
    item = (torch.rand(a.ratings).pow(2) * a.items).long()
    graph = normalized_adjacency(user, item, a.users, a.items).cuda()
    model = LightGCN(a.users, a.items, a.dim, 3, graph).cuda()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(a.steps):
        pick = torch.randint(0, a.ratings, (a.batch,))
        neg = torch.randint(0, a.items, (a.batch,)).cuda()
        bpr, penalty = model.bpr(user[pick].cuda(), item[pick].cuda(), neg)
        loss = bpr + a.decay * penalty
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step} bpr {bpr.item():.4f}")
    print("recall@20", recall(model, user[:2048].cuda(), item[:2048].cuda()))


if __name__ == "__main__":
    main()
