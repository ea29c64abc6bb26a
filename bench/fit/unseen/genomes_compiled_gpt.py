"""Genomes letter by letter: a decoder whose blocks are compiled one by one, RoPE, SwiGLU, bf16, fused AdamW."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def rope_tables(length, dim, device):
    inv = 1.0 / 10000 ** (torch.arange(0, dim, 2, device=device).float() / dim)
    angles = torch.arange(length, device=device)[:, None] * inv[None]
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).type_as(x)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        hidden = 8 * width // 3
        self.w1, self.w2, self.w3 = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
            nn.Linear(width, hidden, bias=False),
        )

    def forward(self, x, cos, sin):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.o(y.transpose(1, 2).reshape(b, t, d))
        h = self.n2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class GenomeLM(nn.Module):
    def __init__(self, vocab=12, width=768, layers=10, heads=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.dim = width // heads

    def forward(self, ids, targets):
        cos, sin = rope_tables(ids.shape[1], self.dim, ids.device)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def main():
    torch.manual_seed(0)
    model = GenomeLM().cuda()
    for block in model.blocks:
        block.compile()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for step in range(6):
        seq = torch.randint(0, 12, (4, 4097), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(seq[:, :-1], seq[:, 1:])
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)
        print(step, loss.item())


if __name__ == "__main__":
    main()
