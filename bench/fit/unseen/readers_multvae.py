"""Books for readers by Mult-VAE: whole shelves as rows over 60,000 books, multinomial likelihood, KL annealed, NDCG@100 on other readers after each epoch, the best weights saved, Adam."""

import argparse
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser(description="Variational Autoencoders for Collaborative Filtering")
parser.add_argument("--books", type=int, default=60_000)
parser.add_argument("--readers", type=int, default=3072)
parser.add_argument("--batch_size", type=int, default=768)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--total_anneal_steps", type=int, default=200)
parser.add_argument("--anneal_cap", type=float, default=0.2)
args = parser.parse_args()

torch.manual_seed(98765)
np.random.seed(98765)
device = torch.device("cuda")


class MultiVAE(nn.Module):
    def __init__(self, p_dims, dropout=0.5):
        super().__init__()
        self.p_dims = p_dims
        self.q_dims = p_dims[::-1]
        temp = self.q_dims[:-1] + [self.q_dims[-1] * 2]
        self.q_layers = nn.ModuleList(nn.Linear(i, o) for i, o in zip(temp[:-1], temp[1:]))
        self.p_layers = nn.ModuleList(
            nn.Linear(i, o) for i, o in zip(self.p_dims[:-1], self.p_dims[1:])
        )
        self.drop = nn.Dropout(dropout)
        for layer in [*self.q_layers, *self.p_layers]:
            nn.init.xavier_normal_(layer.weight)
            nn.init.normal_(layer.bias, 0.0, 0.001)

    def encode(self, x):
        h = self.drop(F.normalize(x))
        for i, layer in enumerate(self.q_layers):
            h = layer(h)
            if i != len(self.q_layers) - 1:
                h = torch.tanh(h)
        return h.chunk(2, dim=1)

    def decode(self, z):
        for i, layer in enumerate(self.p_layers):
            z = layer(z)
            if i != len(self.p_layers) - 1:
                z = torch.tanh(z)
        return z

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = mu
        if self.training:
            z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.decode(z), mu, logvar


def loss_function(recon, x, mu, logvar, anneal):
    bce = -torch.mean(torch.sum(F.log_softmax(recon, 1) * x, -1))
    kld = -0.5 * torch.mean(torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1))
    return bce + anneal * kld


def shelves(rows):
    x = np.zeros((rows, args.books), dtype=np.float32)
    for r in x:
        r[np.random.zipf(1.3, 80) % args.books] = 1.0
    return x


def evaluate(model, seen, hidden, k=100):
    model.eval()
    discount = torch.tensor([1 / math.log2(i + 2) for i in range(k)], device=device)
    with torch.no_grad():
        x = torch.from_numpy(seen).to(device)
        scores, _, _ = model(x)
        scores[x > 0] = -torch.inf
        top = scores.topk(k, dim=1).indices
        hits = torch.from_numpy(hidden).to(device).gather(1, top)
        return ((hits * discount).sum(1) / discount.sum()).mean().item()


train = shelves(args.readers)
seen, hidden = shelves(512), shelves(512)
model = MultiVAE([200, 1200, args.books]).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, weight_decay=0.0)
best, updates = -1.0, 0
with tempfile.TemporaryDirectory() as folder:
    for epoch in range(1, args.epochs + 1):
        model.train()
        order = np.random.permutation(args.readers)
        for start in range(0, args.readers, args.batch_size):
            data = torch.from_numpy(train[order[start : start + args.batch_size]]).to(device)
            anneal = min(args.anneal_cap, updates / args.total_anneal_steps)
            optimizer.zero_grad()
            recon, mu, logvar = model(data)
            loss = loss_function(recon, data, mu, logvar, anneal)
            loss.backward()
            optimizer.step()
            updates += 1
            print(f"epoch {epoch} update {updates} loss {loss.item():.2f}")
        n100 = evaluate(model, seen, hidden)
        print(f"epoch {epoch} ndcg@100 {n100:.5f}")
        if n100 > best:
            best = n100
            torch.save(model.state_dict(), os.path.join(folder, "best.pt"))
