"""Switch transformer: top-1 experts with a capacity, dispatch and combine by einsum, balance loss, bf16 autocast."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class SwitchFFN(nn.Module):
    def __init__(self, dim, hidden, experts=8, capacity=1.25):
        super().__init__()
        self.experts, self.capacity = experts, capacity
        self.router = nn.Linear(dim, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, dim, hidden) * dim**-0.5)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, dim) * hidden**-0.5)

    def forward(self, x):
        b, n, d = x.shape
        with torch.autocast("cuda", enabled=False):
            probs = F.softmax(self.router(x.float()), -1)
        gate, expert = probs.max(-1)
        one = F.one_hot(expert, self.experts).float()
        balance = self.experts * (one.mean((0, 1)) * probs.mean((0, 1))).sum()
        slots = int(self.capacity * n / self.experts)
        place = (one.cumsum(1) - 1) * one
        keep = one * (place < slots)
        dispatch = (
            keep[..., None]
            * F.one_hot(place.sum(-1).long().clamp(max=slots - 1), slots)[:, :, None]
        )
        combine = dispatch * gate[..., None, None]
        inside = torch.einsum("bnec,bnd->ebcd", dispatch.to(x.dtype), x)
        h = F.gelu(torch.einsum("ebcd,edh->ebch", inside, self.w1))
        out = torch.einsum("ebch,ehd->ebcd", h, self.w2)
        return torch.einsum("bnec,ebcd->bnd", combine.to(out.dtype), out), balance


class Layer(nn.Module):
    def __init__(self, dim, heads, sparse):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.o = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.sparse = sparse
        self.ffn = (
            SwitchFFN(dim, 4 * dim)
            if sparse
            else nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        )

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, n, d))
        if self.sparse:
            y, balance = self.ffn(self.n2(x))
            return x + y, balance
        return x + self.ffn(self.n2(x)), 0.0


class SwitchLM(nn.Module):
    def __init__(self, vocab=32000, dim=512, layers=8, heads=8, length=512):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, sparse=k % 2 == 1) for k in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        aux = 0.0
        for layer in self.layers:
            x, balance = layer(x)
            aux = aux + balance
        return self.head(self.norm(x)), aux


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = SwitchLM().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    for step in range(8):
        ids = torch.randint(0, 32000, (12, 513), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits, aux = model(ids[:, :-1])
            ce = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss = ce + 0.01 * aux
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(step, ce.item(), float(aux))


if __name__ == "__main__":
    main()
