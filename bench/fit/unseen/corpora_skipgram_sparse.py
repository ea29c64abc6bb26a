"""Word vectors: skip-gram with negative sampling on a 1.2-million-word vocabulary. Sparse gradients, SparseAdam."""

import time

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, DIM = 1_200_000, 300
WINDOW, NEGATIVES = 5, 10
CHUNK = 6_000  # tokens of running text per step
SUBSAMPLE = 1e-4


class SkipGram(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.centre = nn.Embedding(vocab, dim, sparse=True)
        self.context = nn.Embedding(vocab, dim, sparse=True)
        bound = 0.5 / dim
        nn.init.uniform_(self.centre.weight, -bound, bound)
        nn.init.zeros_(self.context.weight)

    def forward(self, centre, context, negatives):
        v = self.centre(centre)
        good = (v * self.context(context)).sum(-1)
        bad = torch.bmm(self.context(negatives), v.unsqueeze(2)).squeeze(2)
        return -(F.logsigmoid(good) + F.logsigmoid(-bad).sum(1)).mean()


class Text:
    """A stand-in for the corpus: Zipf-distributed ids with frequent words dropped as in word2vec."""

    def __init__(self, device):
        rank = torch.arange(1, VOCAB + 1, device=device, dtype=torch.float64)
        freq = 1 / (rank + 2.7)
        freq /= freq.sum()
        self.keep = (SUBSAMPLE / freq).sqrt().clamp(max=1).float()
        self.cdf = freq.cumsum(0)
        noise = freq**0.75
        self.noise_cdf = (noise / noise.sum()).cumsum(0)
        self.device = device

    def draw(self, cdf, *shape):
        u = torch.rand(*shape, device=self.device, dtype=torch.float64)
        return torch.searchsorted(cdf, u).clamp_(max=VOCAB - 1)

    def pairs(self):
        words = self.draw(self.cdf, CHUNK)
        words = words[torch.rand(len(words), device=self.device) < self.keep[words]]
        n = len(words)
        reach = torch.randint(1, WINDOW + 1, (n,), device=self.device)
        centre, context = [], []
        for offset in range(1, WINDOW + 1):
            near = reach >= offset
            i = torch.arange(n, device=self.device)
            for j in (i - offset, i + offset):
                ok = near & (j >= 0) & (j < n)
                centre.append(words[i[ok]])
                context.append(words[j[ok]])
        return torch.cat(centre), torch.cat(context)


@torch.no_grad()
def neighbours(model, word, k=5):
    table = model.centre.weight
    query = F.normalize(table[word], dim=0)
    best = []
    for rows in table.split(200_000):
        best.append(F.normalize(rows, dim=1) @ query)
    return torch.cat(best).topk(k + 1).indices[1:].tolist()


def main():
    torch.manual_seed(1)
    device = "cuda"
    text = Text(device)
    with torch.device(device):
        model = SkipGram(VOCAB, DIM)
    opt = torch.optim.SparseAdam(model.parameters(), lr=1e-3)
    steps = 3
    for step in range(steps):
        start = time.time()
        centre, context = text.pairs()
        negatives = text.draw(text.noise_cdf, len(centre), NEGATIVES)
        loss = model(centre, context, negatives)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for group in opt.param_groups:
            group["lr"] = 1e-3 * (1 - (step + 1) / (steps + 1))
        print(f"{step} pairs {len(centre)} loss {loss.item():.4f} {time.time() - start:.2f}s")
    print(neighbours(model, 42))


main()
