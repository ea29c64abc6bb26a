"""Loans that will fail: an FT-Transformer over numbers and categories, its layers compiled in place, piecewise-linear encodings, bf16, AUC of every batch."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CARDINALITIES = [12, 50, 7, 3, 900, 31, 24, 365, 5, 2, 18, 64]
NUMBERS, BINS = 84, 48


class PiecewiseLinear(nn.Module):
    def __init__(self, n, bins, d):
        super().__init__()
        edges = torch.linspace(-3, 3, bins + 1).expand(n, -1).clone()
        self.register_buffer("left", edges[:, :-1].contiguous())
        self.register_buffer("width", (edges[:, 1:] - edges[:, :-1]).contiguous())
        self.weight = nn.Parameter(torch.randn(n, bins, d) * bins**-0.5)
        self.bias = nn.Parameter(torch.zeros(n, d))

    def forward(self, x):
        codes = ((x[..., None] - self.left) / self.width).clamp(0, 1)
        return torch.einsum("bnk,nkd->bnd", codes, self.weight) + self.bias


class CategoryTokens(nn.Module):
    def __init__(self, cardinalities, d):
        super().__init__()
        self.register_buffer("offset", torch.tensor([0, *cardinalities[:-1]]).cumsum(0))
        self.table = nn.Embedding(sum(cardinalities), d)

    def forward(self, c):
        return self.table(c + self.offset)


class ReGLU(nn.Module):
    def __init__(self, d, hidden, p):
        super().__init__()
        self.enter, self.leave, self.p = nn.Linear(d, 2 * hidden), nn.Linear(hidden, d), p

    def forward(self, x):
        a, b = self.enter(x).chunk(2, -1)
        return self.leave(F.dropout(a * F.relu(b), self.p, self.training))


class Layer(nn.Module):
    def __init__(self, d, heads, p):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.n1, self.n2, self.ffn = nn.LayerNorm(d), nn.LayerNorm(d), ReGLU(d, d * 4 // 3, p)
        self.heads = heads

    def forward(self, h):
        b, n, d = h.shape
        qkv = self.qkv(self.n1(h)).view(b, n, 3, self.heads, d // self.heads)
        a = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
        h = h + self.out(a.transpose(1, 2).reshape(b, n, d))
        return h + self.ffn(self.n2(h))


class FTTransformer(nn.Module):
    def __init__(self, d=192, depth=4, heads=8, p=0.1):
        super().__init__()
        self.numbers = PiecewiseLinear(NUMBERS, BINS, d)
        self.kinds = CategoryTokens(CARDINALITIES, d)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.layers = nn.ModuleList([Layer(d, heads, p) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, 1))

    def forward(self, x, c):
        h = torch.cat([self.cls.expand(len(x), -1, -1), self.numbers(x), self.kinds(c)], 1)
        for layer in self.layers:
            h = layer(h)
        return self.head(h[:, 0]).squeeze(-1)


def auc(scores, labels):
    """Share of pairs in the right order, from the sum of the ranks of the positive ones."""
    ranks = scores.argsort().argsort().float() + 1
    p = labels.sum()
    return ((ranks * labels).sum() - p * (p + 1) / 2) / (p * (len(labels) - p)).clamp(min=1)


def applicants(n, g):
    x = torch.randn(n, NUMBERS, generator=g)
    c = torch.stack([torch.randint(0, k, (n,), generator=g) for k in CARDINALITIES], 1)
    y = (x[:, :5].sum(1) + torch.randn(n, generator=g) > 2.5).float()
    return x.cuda(), c.cuda(), y.cuda()


if __name__ == "__main__":
    torch.manual_seed(33)
    g = torch.Generator().manual_seed(33)
    model = FTTransformer().cuda()
    for layer in model.layers:
        layer.compile()
    groups = {True: [], False: []}
    for name, p in model.named_parameters():
        groups[p.ndim > 1 and not name.startswith(("numbers", "kinds", "cls"))].append(p)
    opt = torch.optim.AdamW(
        [{"params": groups[True]}, {"params": groups[False], "weight_decay": 0.0}],
        lr=1e-4,
        weight_decay=1e-5,
    )
    for step in range(5):
        x, c, y = applicants(1536, g)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(x, c)
        loss = F.binary_cross_entropy_with_logits(logits.float(), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item(), auc(logits.detach().float(), y).item())
