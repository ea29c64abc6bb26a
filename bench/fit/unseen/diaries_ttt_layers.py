"""Diaries by a language model with test-time-training layers: an inner linear model learns by its own gradient over each chunk of text, differentiated through, bf16 autocast, RAdam."""

import torch
from torch import nn
from torch.nn import functional as F


class TTTLinear(nn.Module):
    """Hidden state: weights W (B, H, D, D) that take a gradient step per chunk on reconstruction."""

    def __init__(self, dim, heads, chunk):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        d = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.eta = nn.Linear(dim, heads)
        self.w0 = nn.Parameter(torch.randn(heads, d, d) * 0.02)
        self.b0 = nn.Parameter(torch.zeros(heads, 1, d))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        rate = torch.sigmoid(self.eta(x)).transpose(1, 2)[..., None] / k.shape[-1]
        w, bias = self.w0.expand(b, -1, -1, -1), self.b0.expand(b, -1, -1, -1)
        seen = []
        parts = (z.split(self.chunk, 2) for z in (q, k, v, rate))
        for qc, kc, vc, rc in zip(*parts):
            error = kc @ w + bias - (vc - kc)
            step = rc * error
            causal = torch.tril(qc @ kc.transpose(-1, -2))
            z = qc @ w + bias - causal @ step - step.cumsum(2)
            w = w - kc.transpose(-1, -2) @ step
            bias = bias - step.sum(2, keepdim=True)
            seen.append(qc + self.norm(z))
        return self.out(torch.cat(seen, 2).transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, dim, heads, chunk):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.ttt = TTTLinear(dim, heads, chunk)
        self.conv = nn.Conv1d(dim, dim, 4, groups=dim, padding=3)
        self.gate, self.down = nn.Linear(dim, 5 * dim), nn.Linear(5 * dim // 2, dim)

    def forward(self, x):
        y = self.n1(x)
        y = self.conv(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        x = x + self.ttt(y)
        a, b = self.gate(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(a) * b)


class DiaryModel(nn.Module):
    def __init__(self, vocab=12_000, dim=512, depth=8, heads=8, chunk=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads, chunk) for _ in range(depth)))
        self.norm = nn.RMSNorm(dim)
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, ids):
        return F.linear(self.norm(self.blocks(self.embed(ids))), self.embed.weight)


if __name__ == "__main__":
    model = DiaryModel().cuda()
    opt = torch.optim.RAdam(
        model.parameters(), lr=4e-4, decoupled_weight_decay=True, weight_decay=0.1
    )
    diaries = torch.randint(12_000, (200_000,), dtype=torch.int32)
    for step in range(5):
        start = torch.randint(len(diaries) - 513, (10,))
        page = torch.stack([diaries[s : s + 513] for s in start]).long().cuda()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(page[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), page[:, 1:].flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()
        print(f"{step}\t{loss.item():.3f}")
