"""A pair representation of a protein: triangle multiplication and attention, then a distogram; one crop a step."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class TriangleMultiply(nn.Module):
    def __init__(self, c, hidden, outgoing):
        super().__init__()
        self.outgoing = outgoing
        self.norm, self.norm_out = nn.LayerNorm(c), nn.LayerNorm(hidden)
        self.a, self.b = nn.Linear(c, hidden), nn.Linear(c, hidden)
        self.ga, self.gb = nn.Linear(c, hidden), nn.Linear(c, hidden)
        self.out, self.gate = nn.Linear(hidden, c), nn.Linear(c, c)

    def forward(self, z):
        z = self.norm(z)
        a = torch.sigmoid(self.ga(z)) * self.a(z)
        b = torch.sigmoid(self.gb(z)) * self.b(z)
        eq = "ikc,jkc->ijc" if self.outgoing else "kic,kjc->ijc"
        return torch.sigmoid(self.gate(z)) * self.out(self.norm_out(torch.einsum(eq, a, b)))


class TriangleAttention(nn.Module):
    def __init__(self, c, heads=4, dim=32, ending=False):
        super().__init__()
        self.heads, self.ending = heads, ending
        self.norm = nn.LayerNorm(c)
        self.qkv = nn.Linear(c, 3 * heads * dim, bias=False)
        self.bias, self.gate = nn.Linear(c, heads, bias=False), nn.Linear(c, heads * dim)
        self.out = nn.Linear(heads * dim, c)

    def forward(self, z):
        if self.ending:
            z = z.transpose(0, 1)
        z = self.norm(z)
        n = z.size(0)
        q, k, v = self.qkv(z).view(n, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
        logits = logits + self.bias(z).permute(2, 0, 1)
        o = (logits.softmax(-1) @ v).transpose(1, 2).reshape(n, n, -1)
        o = self.out(torch.sigmoid(self.gate(z)) * o)
        return o.transpose(0, 1) if self.ending else o


class Block(nn.Module):
    def __init__(self, c=128):
        super().__init__()
        self.parts = nn.ModuleList(
            [
                TriangleMultiply(c, 128, True),
                TriangleMultiply(c, 128, False),
                TriangleAttention(c),
                TriangleAttention(c, ending=True),
                nn.Sequential(nn.LayerNorm(c), nn.Linear(c, 4 * c), nn.ReLU(), nn.Linear(4 * c, c)),
            ]
        )

    def forward(self, z):
        for part in self.parts:
            z = z + F.dropout(part(z), 0.1, self.training)
        return z


class Folder(nn.Module):
    def __init__(self, c=128, blocks=4, bins=64):
        super().__init__()
        self.left, self.right = nn.Embedding(21, c), nn.Embedding(21, c)
        self.rel = nn.Embedding(65, c)
        self.blocks = nn.ModuleList(Block(c) for _ in range(blocks))
        self.disto = nn.Linear(c, bins)

    def forward(self, seq, index):
        offset = (index[:, None] - index[None]).clamp(-32, 32) + 32
        z = self.left(seq)[:, None] + self.right(seq)[None] + self.rel(offset)
        for block in self.blocks:
            z = block(z)
        return self.disto(z + z.transpose(0, 1))


def main(crop=160, steps=8):
    torch.manual_seed(0)
    model = Folder().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-6)
    edges = torch.linspace(2.3, 21.7, 63, device="cuda")
    for step in range(steps):
        seq = torch.randint(0, 21, (crop,), device="cuda")
        xyz = torch.randn(crop, 3, device="cuda").cumsum(0) * 2
        bins = torch.bucketize(torch.cdist(xyz, xyz), edges)
        logits = model(seq, torch.arange(crop, device="cuda"))
        loss = F.cross_entropy(logits.flatten(0, 1), bins.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    main()
